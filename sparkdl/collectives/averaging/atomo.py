"""ATOMO (Wang et al., 2018, arXiv 1806.04090): a matrix is a sum of atoms, and a few atoms, drawn at random, are sent.

The atoms are pairs of singular vectors. An atom with the singular value s is drawn with a probability p proportional to
s, but at most 1, and sent as s / p: the expected message is the matrix, with the least variance for that number of
atoms.
"""

from collections.abc import Sequence

import torch
from typing_extensions import override

from sparkdl.collectives.averaging.averager import Averager, Exchange, check_precision
from sparkdl.collectives.averaging.matrices import as_matrix, shrinks
from sparkdl.collectives.averaging.packing import message_of, parts_of
from sparkdl.collectives.communicator import Communicator

__all__ = ["Atomo", "probabilities"]

SEED = 0  # of the random sums that find a matrix's factors; any seed would do
FIRST_WIDTH = 128  # of the factors that are tried first: batches seldom have more rows
PROBES = 4  # random vectors that estimate the error of the factors
FAR_SHORTER = 4  # least compression: for less, as in a last layer with few outputs, it does not justify the noise
LOST = 1e-4  # allowed error of the factors, relative to the matrix's norm; above float32's rounding errors


class Atomo(Averager):
    """Sends ``atoms`` atoms of each matrix, and tensors whole that this would not make far shorter."""

    def __init__(self, communicator: Communicator, *, atoms: int) -> None:
        self._communicator, self._atoms = communicator, atoms

    @override
    def exchange(self, tensors: Sequence[torch.Tensor], *, key: str) -> Exchange:
        check_precision(tensors)
        parts, kinds = [], []
        for tensor in tensors:
            sent = self._drawn(as_matrix(tensor)) if self._shrinks(tensor) else [tensor]
            parts += sent
            kinds += [(part.dtype, tuple(part.shape)) for part in sent]
        arriving = self._communicator.start_all_gather(message_of(*parts), name=key)
        yield
        messages = [iter(parts_of(message, *kinds)) for message in arriving()]
        for tensor in tensors:
            if self._shrinks(tensor):
                lefts, rights = zip(*((next(found), next(found)) for found in messages), strict=True)
                mean = (torch.cat(lefts).T / self._communicator.size) @ torch.cat(rights)
                tensor.copy_(mean.view(tensor.shape))
            else:
                tensor.copy_(torch.stack([next(found) for found in messages]).mean(dim=0))

    def _shrinks(self, tensor: torch.Tensor) -> bool:
        return shrinks(tensor, rank=FAR_SHORTER * self._atoms)

    def _drawn(self, matrix: torch.Tensor) -> list[torch.Tensor]:
        """Atoms drawn from a matrix: their columns, shape ``(atoms, rows)``, and rows, shape ``(atoms, columns)``."""
        if not matrix.norm().isfinite():  # sent as it is, so that the checks of gradients see it
            return [matrix.new_full((self._atoms, size), torch.nan) for size in matrix.shape]
        if len(matrix) > matrix.shape[1]:
            return self._drawn(matrix.T)[::-1]
        left, rows = _singular(matrix)
        chances = probabilities(rows.norm(dim=1), self._atoms)
        # Systematic sampling: points at distance one on a line where each atom's length is its probability.
        ends = chances.cumsum(0).add_(torch.rand((), dtype=chances.dtype)).floor_()
        starts = torch.cat([ends.new_zeros(1), ends[:-1]])
        drawn = (ends > starts).nonzero().squeeze(1)[: self._atoms]
        lefts, rights = (matrix.new_zeros(self._atoms, size) for size in matrix.shape)
        lefts[: len(drawn)] = left[:, drawn].T
        rights[: len(drawn)] = rows[drawn] / chances[drawn].to(matrix)[:, None]
        return [lefts, rights]


def probabilities(values: torch.Tensor, count: int) -> torch.Tensor:
    """The probability of each singular value (in falling order) when ``count`` of them are drawn; in float64."""
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


def _singular(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Left singular vectors, and right ones times their values, of a matrix with at least as many columns as rows.

    Eigenvectors of matrix @ matrix.T take less time than a singular value decomposition. They are less exact for small
    values; but because they are orthogonal, the product of both results is always the matrix.
    """
    basis, inside = _factors(matrix) or (None, matrix)
    _, turns = torch.linalg.eigh((inside @ inside.T).double())
    turns = turns.flip(1).to(matrix)  # the largest first
    return turns if basis is None else basis @ turns, turns.T @ inside


def _factors(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A matrix as a product of a few orthogonal columns and a few rows; None where its rank is not far lower.

    A gradient's rank is at most the number of the batch's rows. Its column space is found from a few random sums of
    columns, and the rows by least squares from some more sums: the matrix is read, but never multiplied with another
    large one (Clarkson and Woodruff, 2013, arXiv 1207.6365).
    """
    width, generator = FIRST_WIDTH, torch.Generator().manual_seed(SEED)
    while 2 * width <= len(matrix):
        basis = torch.linalg.qr(_sums(matrix.T, _signs(matrix.T, generator), width).T).Q
        signs = _signs(matrix, generator)
        rows: torch.Tensor = torch.linalg.pinv(_sums(basis, signs, 2 * width)) @ _sums(matrix, signs, 2 * width)
        probes = torch.randn(PROBES, len(matrix), generator=generator).to(matrix)
        found = probes @ matrix
        if (found - (probes @ basis) @ rows).norm() <= LOST * found.norm():
            return basis, rows
        width *= 2
    return None


def _signs(matrix: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A random sign for each row."""
    return torch.randint(2, (len(matrix), 1), generator=generator).to(matrix) * 2 - 1


def _sums(matrix: torch.Tensor, signs: torch.Tensor, count: int) -> torch.Tensor:
    """``count`` sums of a matrix's rows; each row is in one of them, with its sign."""
    sums = torch.zeros_like(matrix[:count])  # in the matrix's memory layout, which is several times as fast
    for rows, own in zip(matrix.split(count), signs.split(count), strict=True):
        sums[: len(rows)].addcmul_(rows, own)
    return sums
