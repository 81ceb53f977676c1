"""Decoupled momentum (DeMo; Peng, Quesnelle and Kingma, 2024, arXiv 2411.19870).

Each rank keeps a momentum of its own. The largest coefficients of its cosine transform, which change fast and are
common to many values, are sent and subtracted from the momentum. All ranks step by the sign of the mean.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch.nn.functional import pad
from typing_extensions import override

from sparkdl.collectives.averaging.gathered import Gathered
from sparkdl.collectives.averaging.packing import message_of, parts_of
from sparkdl.collectives.communicator import Communicator

__all__ = ["DeMo"]

SIDE = 64  # of the square tiles that are transformed, as in the authors' code
TILE = SIDE * SIDE


class DeMo(Gathered):
    """Sends the ``coefficients`` largest of each tile's 4,096 coefficients; the result is the sign of their mean.

    Tiles are cut from the vector in its order, 64 rows of 64 values each.
    """

    memory: ClassVar[float] = 0.999  # the paper's decay of the momentum

    def __init__(self, communicator: Communicator, *, coefficients: int) -> None:
        super().__init__(communicator)
        self._coefficients = coefficients

    @override
    def encode(self, vector: torch.Tensor, *, key: str) -> torch.Tensor:
        cosines = _cosines(vector)
        tiles = pad(vector, (0, -len(vector) % TILE)).view(-1, SIDE, SIDE)
        spectrum = (cosines @ tiles @ cosines.T).view(-1, TILE)
        places = spectrum.abs().topk(self._coefficients, dim=1).indices
        return message_of(spectrum.gather(1, places), places.to(torch.int16))

    @override
    def total(self, messages: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        count = -(-len(like) // TILE)
        spectrum = like.new_zeros(count, TILE)
        for message in messages:
            shape = (count, self._coefficients)
            values, places = parts_of(message, (like.dtype, shape), (torch.int16, shape))
            spectrum.scatter_add_(1, places.long(), values)
        cosines = _cosines(like)
        return (cosines.T @ spectrum.view(-1, SIDE, SIDE) @ cosines).view(-1)[: len(like)]

    @override
    def result(self, mean: torch.Tensor, *, key: str) -> torch.Tensor:
        return torch.where(mean.isfinite(), mean.sign(), mean)  # NaN and infinities are kept, so that checks see them


def _cosines(like: torch.Tensor) -> torch.Tensor:
    """The orthonormal matrix of the cosine transform (DCT-II), shape ``(SIDE, SIDE)``."""
    places = torch.arange(SIDE, dtype=torch.float64)
    matrix = torch.cos(math.pi / SIDE * places.unsqueeze(1) * (places + 0.5)) * math.sqrt(2 / SIDE)
    matrix[0] /= math.sqrt(2)
    return matrix.to(like)
