"""Which operations the file of a network may ask for: those that compute tensors from tensors and numbers.

Listed is what ``torch.export`` writes for the layers and functions of ``torch.nn``. What reads files, gives memory that
nobody has written, trusts indices that it does not check or belongs to training is not among it.
"""

import operator
import re
from collections.abc import Callable
from typing import Any

import torch

from sparkdl.errors import ModelError

__all__ = ["operation"]

_ARITHMETIC: dict[str, Callable[..., Any]] = {
    f"operator.{name}": getattr(operator, name)
    for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "getitem")
}
"""What a graph may do with sizes, and the way to one of an operation's several results."""

_LAYERS = """
    linear bilinear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d convolution
    batch_norm instance_norm layer_norm group_norm rms_norm native_layer_norm native_group_norm
    _native_batch_norm_legit _native_batch_norm_legit_no_training
    embedding embedding_bag lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell
    scaled_dot_product_attention dropout feature_dropout alpha_dropout feature_alpha_dropout
    softmax log_softmax _softmax _log_softmax glu hardswish log_sigmoid mish prelu rrelu
    max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d avg_pool3d
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    pixel_shuffle pixel_unshuffle channel_shuffle affine_grid_generator grid_sampler grid_sampler_2d im2col col2im
    pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d
    replication_pad1d replication_pad2d replication_pad3d
"""
_SHAPES = """
    view view_as reshape flatten ravel unflatten squeeze unsqueeze expand expand_as broadcast_to repeat tile
    repeat_interleave permute transpose t mT movedim swapaxes cat stack hstack vstack chunk split split_with_sizes
    unbind narrow select slice unfold flip roll rot90 diagonal diag_embed tril triu meshgrid atleast_2d
    select_scatter slice_scatter
    contiguous clone copy alias detach lift_fresh_copy to _to_copy type_as
    sym_size sym_numel sym_stride sym_storage_offset sym_is_contiguous
"""
_VALUES = """
    sum mean prod var std max min amax amin aminmax argmax argmin any all median mode quantile kthvalue topk sort
    argsort cumsum cumprod cummax logcumsumexp logsumexp count_nonzero diff trapz linalg_norm linalg_vector_norm
    matmul mm bmm addmm baddbmm dot outer einsum tensordot kron linalg_inv cdist _cdist_forward cosine_similarity
    fft_rfft fft_fft2 _fft_r2c _fft_c2r complex polar real view_as_real
    where masked_fill masked_scatter gather index index_select index_put index_fill scatter scatter_add scatter_reduce
    bucketize searchsorted one_hot nonzero floor_divide __and__ __or__ __xor__
    arange linspace eye zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full scalar_tensor
    fill zero _local_scalar_dense
"""
_COMPUTE = frozenset([*_LAYERS.split(), *_SHAPES.split(), *_VALUES.split()])
"""What computes, beside what PyTorch itself marks as computing each number from those at its place."""


def operation(name: str) -> Callable[..., Any]:
    """The operation of this name, as ``torch.export`` writes it (``aten.linear.default``). Runs anywhere.

    Raises :class:`ModelError` for a name of anything else.
    """
    if name in _ARITHMETIC:
        return _ARITHMETIC[name]
    match = re.fullmatch(r"aten\.(\w+)\.(\w+)", name, re.ASCII)
    found = getattr(getattr(torch.ops.aten, match[1], None), match[2], None) if match else None
    if not isinstance(found, torch._ops.OpOverload) or not _computes(found):
        raise ModelError(
            f"the network uses {name!r}, which is not among the tensor operations that its file may ask for"
        )
    return found


def _computes(found: torch._ops.OpOverload) -> bool:
    """Whether an operation is a known one, or the same in the place of its first argument."""
    if any(argument.is_out for argument in found._schema.arguments):
        return False
    name = found._schema.name.removeprefix("aten::")
    return torch.Tag.pointwise in found.tags or name in _COMPUTE or name.removesuffix("_") in _COMPUTE
