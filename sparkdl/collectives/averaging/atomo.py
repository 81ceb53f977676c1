"""ATOMO (Wang et al., 2018, arXiv 1806.04090): a matrix is a sum of atoms, and few of them travel, drawn at random.

The atoms are a matrix's singular vectors. One with the singular value s is drawn with a probability p in proportion to
s, as far as p stays below 1, and sent as s / p: the expected message is the matrix, and its variance the least that so
many atoms can have.
"""

from collections.abc import Sequence

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Averager, Exchange, check_precision
from sparkdl.collectives.averaging.matrices import as_matrix, shrinks
from sparkdl.collectives.averaging.packing import message_of, parts_of
from sparkdl.collectives.communicator import Communicator

__all__ = ["Atomo", "probabilities"]

SEED = 0  # of the vectors that find a matrix's range: which they are does not matter
FIRST_WIDTH = 128  # of the range that is tried first: as many rows have usual batches at most
LOST = 1e-4  # the part of a matrix's norm that may be missing: rounding errors of float32 are below it


class Atomo(Averager):
    """As many atoms of each matrix travel, and whole what that would not shrink."""

    def __init__(self, communicator: Communicator, *, atoms: int) -> None:
        self._communicator, self._atoms = communicator, atoms

    @override
    def exchange(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        check_precision(tensors)
        parts, kinds = [], []
        for tensor in tensors:
            sent = self._drawn(as_matrix(tensor)) if shrinks(tensor, rank=self._atoms) else [tensor]
            parts += sent
            kinds += [(part.dtype, tuple(part.shape)) for part in sent]
        arriving = self._communicator.start_all_gather(message_of(*parts), name=key)
        yield
        for tensor in tensors:
            tensor.zero_()
        for message in arriving():
            found = iter(parts_of(message, *kinds))
            for tensor in tensors:
                said = next(found) @ next(found).T if shrinks(tensor, rank=self._atoms) else next(found)
                tensor.add_(said.view(tensor.shape), alpha=1 / self._communicator.size)

    def _drawn(self, matrix: torch.Tensor) -> list[torch.Tensor]:
        """Atoms drawn from a matrix, as columns of two thin ones whose product they are."""
        if not matrix.isfinite().all():  # which has no singular values; whoever looks at the gradient shall see it
            return [matrix.new_full((size, self._atoms), torch.nan) for size in matrix.shape]
        left, values, right = _singular(matrix)
        chances = probabilities(values, self._atoms)
        # Points at distance one on a line, on which each atom has the length of its chance: always as many are hit.
        ends = chances.cumsum(0).add_(torch.rand((), dtype=chances.dtype)).floor_()
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        drawn = (ends > starts).nonzero().squeeze(1)[: self._atoms]
        sizes = (values[drawn].double() / chances[drawn]).to(matrix)
        lefts = matrix.new_zeros(len(matrix), self._atoms)
        rights = matrix.new_zeros(matrix.shape[1], self._atoms)
        lefts[:, : len(drawn)] = left[:, drawn] * sizes
        rights[:, : len(drawn)] = right[drawn].T
        return [lefts, rights]


def probabilities(values: torch.Tensor, count: int) -> torch.Tensor:
    """With which each of some falling singular values is drawn, so that ``count`` of them are; in float64."""
    values = values.double()
    chances = (values > 0).double()
    if chances.sum() <= count:
        return chances
    for certain in range(count):
        rest = values[certain:] * ((count - certain) / values[certain:].sum())
        if rest[0] <= 1:
            chances[certain:] = rest
            break
    return chances


def _singular(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Left singular vectors (columns), singular values, and right singular vectors (rows).

    A gradient has at most the rank of its batch's rows. Where that is far less than its size, its range is found by a
    few products with random vectors (Halko et al., 2011, arXiv 0909.4061), and the rest is exact and small.
    """
    width, generator = FIRST_WIDTH, torch.Generator().manual_seed(SEED)
    while 2 * width <= min(matrix.shape):
        tries = torch.randn(matrix.shape[1], width, generator=generator).to(matrix)
        basis = torch.linalg.qr(matrix @ tries).Q
        inside = basis.T @ matrix
        if (matrix - basis @ inside).norm() <= LOST * matrix.norm():
            left, values, right = torch.linalg.svd(inside, full_matrices=False)
            return basis @ left, values, right
        width *= 2
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    return left, values, right
