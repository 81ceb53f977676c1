"""PowerSGD (Vogels et al., 2019, arXiv 1905.13727): a matrix is sent as the product of two thin matrices.

The thin matrices are found by one step of power iteration, which starts from the result of the last one. Both are means
over ranks, and may be computed in any topology. The error of a rank's own thin matrices is added to its next gradient.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Averager, Exchange, check_precision
from sparkdl.collectives.averaging.matrices import as_matrix, shrinks

__all__ = ["PowerSGD"]

SEED = 0  # of the initial bases, which are the same on all ranks


class PowerSGD(Averager):
    """Sends both thin matrices of each matrix, and tensors whole that this would not shrink.

    The plain averager computes the means. Thin matrices are stored transposed, with few long rows, because products
    with few short columns take libraries up to ten times as long.
    """

    def __init__(self, plain: Averager, *, rank: int) -> None:
        self._plain, self._rank = plain, rank
        self._bases: dict[str, torch.Tensor] = {}
        """By matrix: where its next power iteration starts, shape ``(rank, columns)``, the same on all ranks."""
        self._unsent: dict[str, torch.Tensor] = {}
        """By matrix: this rank's error, which is added to its next gradient."""

    @override
    def exchange(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        check_precision(tensors)
        named = {f"{key}.{place}": tensor for place, tensor in enumerate(tensors)}
        low = {name: tensor for name, tensor in named.items() if shrinks(tensor, rank=self._rank)}
        whole = [tensor for name, tensor in named.items() if name not in low]
        lefts = [self._basis(name, tensor) @ self._with_unsent(name, tensor).T for name, tensor in low.items()]
        yield from self._plain.exchange([*lefts, *whole], key=f"{key}.left")
        lefts = [torch.linalg.qr(left.T).Q.T for left in lefts]
        rights = [left @ self._unsent[name] for name, left in zip(low, lefts, strict=True)]
        for name, left, right in zip(low, lefts, rights, strict=True):
            self._unsent[name].addmm_(left.T, right, alpha=-1)
        if rights:
            yield from self._plain.exchange(rights, key=f"{key}.right")
        for (name, tensor), left, right in zip(low.items(), lefts, rights, strict=True):
            tensor.copy_((left.T @ right).view(tensor.shape))
            self._bases[name] = right

    @override
    def state(self) -> dict[str, Any]:
        return {"bases": self._bases}

    @override
    def load(self, state: Mapping[str, Any]) -> None:
        self._bases = dict(state["bases"])

    @override
    def own_state(self) -> dict[str, Any]:
        return {"unsent": self._unsent}

    @override
    def load_own(self, own: Mapping[str, Any]) -> None:
        self._unsent = dict(own["unsent"])

    def _with_unsent(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        matrix = as_matrix(tensor)
        unsent = self._unsent.setdefault(name, torch.zeros_like(matrix, memory_format=torch.contiguous_format))
        return unsent.add_(matrix)

    def _basis(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name not in self._bases:
            start = torch.randn(self._rank, tensor[0].numel(), generator=torch.Generator().manual_seed(SEED))
            self._bases[name] = start.to(tensor)
        return self._bases[name]
