"""The operations that a network's file may contain: those that compute tensors from tensors and numbers.

They are PyTorch's core ATen set (https://docs.pytorch.org/docs/stable/torch.compiler_ir.html), into which it can
decompose most other operations; those that it cannot decompose; and some that are not decomposed, because they are
faster or because older files contain them. The export decomposes all others (:func:`decompositions`). Operations that
read files, call other programs or Python, return uninitialised memory, do not check indices, draw random numbers or
belong to training are not allowed.
"""

import operator
import re
from collections.abc import Callable, Iterable
from typing import Any

import torch

from sparkdl.errors import ModelError

__all__ = ["decompositions", "operation"]

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    f"operator.{name}": getattr(operator, name)
    for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "getitem")
}
"""Python functions that a graph may call: arithmetic on sizes, and access to one of several results."""

_NOT_OF_CORE = frozenset(["empty", "empty_strided", "resize", "_embedding_bag", "native_dropout"])
"""Operations of core ATen that are not allowed: they return uninitialised memory, do not check offsets, or draw random
numbers. Its derivatives and random number generators are not allowed either."""
_LEFT = """
    adaptive_max_pool2d adaptive_max_pool3d batch_norm chunk contiguous dropout alpha_dropout feature_dropout
    feature_alpha_dropout embedding_renorm grid_sampler_3d
    upsample_bicubic2d upsample_bilinear2d upsample_trilinear3d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa
    view view_as reshape reshape_as flatten ravel unflatten expand_as broadcast_to narrow movedim moveaxis swapaxes
    swapdims unfold mT mH numpy_T adjoint atleast_1d atleast_2d atleast_3d hsplit vsplit dsplit tensor_split
    diagonal_scatter cartesian_prod to lift_fresh lift_fresh_copy
    complex polar real imag angle view_as_real view_as_complex conj _conj _conj_physical resolve_conj resolve_neg
    kthvalue median nanmedian mode cummax cummin cumprod logcumsumexp var_mean histc bincount masked_select
    bucketize searchsorted index_reduce repeat_interleave _unique2 unique_consecutive unique_dim
    unique_dim_consecutive tril_indices triu_indices
    addbmm addmv _trilinear einsum dist _fft_c2c
    hann_window hamming_window bartlett_window blackman_window kaiser_window fft_fftfreq fft_rfftfreq
    linalg_vector_norm linalg_matrix_exp linalg_pinv linalg_qr linalg_cholesky_ex linalg_inv_ex linalg_eig linalg_lu
    linalg_householder_product linalg_solve_triangular linalg_diagonal _linalg_solve_ex _linalg_svd _linalg_eigh
    _linalg_eigvals _linalg_det _linalg_slogdet cholesky cholesky_inverse cholesky_solve triangular_solve linalg_solve
    linalg_cholesky linalg_lu_factor
"""
"""Operations that PyTorch cannot decompose into core ATen: other layers, views, statistics, linear algebra."""
_WHOLE = """
    linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
    instance_norm layer_norm group_norm rms_norm embedding_bag
    lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell scaled_dot_product_attention
    softmax log_softmax glu hardswish log_sigmoid prelu rrelu mish
    max_pool1d max_pool2d max_pool3d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d
    upsample_linear1d upsample_nearest1d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    pixel_shuffle pixel_unshuffle channel_shuffle affine_grid_generator grid_sampler im2col pad replication_pad1d
    split stack hstack vstack unbind tile t transpose meshgrid rot90 roll diag_embed tril triu detach type_as
    all std diff trapz quantile logsumexp aminmax argsort count_nonzero floor_divide __and__ __or__ __xor__
    matmul dot outer tensordot kron baddbmm cdist cosine_similarity linalg_norm linalg_inv fft_rfft fft_fft2
    masked_fill index_fill one_hot zero zeros ones zeros_like ones_like new_zeros new_ones new_full eye linspace
"""
"""Operations that PyTorch could decompose, but which are faster as a whole, or are contained in older files."""
_COMPUTE = frozenset([*_LEFT.split(), *_WHOLE.split()])


def operation(name: str) -> Callable[..., Any]:
    """The operation of this name, as ``torch.export`` writes it (``aten.linear.default``). Runs anywhere.

    Raises :class:`ModelError` for a name of anything else.
    """
    if name in _ARITHMETIC:
        return _ARITHMETIC[name]
    found = _found(name)
    if found is None or not _computes(found):
        raise ModelError(
            f"the network uses {name!r}, which is not among the tensor operations that a network's file may contain"
        )
    return found


def decompositions(names: Iterable[str]) -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of those of these operations that files must not contain, as far as they exist."""
    known = torch.export.default_decompositions()
    refused = [found for name in names if (found := _found(name)) is not None and not _computes(found)]
    return {found: known[found] for found in refused if found in known}


def _found(name: str) -> torch._ops.OpOverload | None:
    match = re.fullmatch(r"aten\.(\w+)\.(\w+)", name, re.ASCII)
    found = getattr(getattr(torch.ops.aten, match[1], None), match[2], None) if match else None
    return found if isinstance(found, torch._ops.OpOverload) else None


def _computes(found: torch._ops.OpOverload) -> bool:
    """Whether an operation is a known one, or the in-place variant of one."""
    if any(argument.is_out for argument in found._schema.arguments):
        return False
    name = found._schema.name.removeprefix("aten::")
    if name in _COMPUTE or name.removesuffix("_") in _COMPUTE:
        return True
    if torch.Tag.nondeterministic_seeded in found.tags:
        return False
    return torch.Tag.pointwise in found.tags or (_is_of_core(name.removesuffix("_")) and _has_tensors(found))


def _is_of_core(name: str) -> bool:
    """Whether one of an operation's overloads is in core ATen, and it only computes."""
    if name in _NOT_OF_CORE or name.endswith("_backward"):
        return False
    packet = getattr(torch.ops.aten, name, None)
    forms = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else []
    return any(torch.Tag.core in getattr(packet, form).tags for form in forms)


def _has_tensors(found: torch._ops.OpOverload) -> bool:
    """Whether it takes or returns tensors: TorchScript has overloads of the same name for texts, lists and numbers."""
    return any("Tensor" in str(each.type) for each in (*found._schema.arguments, *found._schema.returns))
