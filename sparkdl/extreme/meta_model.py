"""Small classifiers over buckets, several of them packed into one computation.

Repetitions that share a task share each batch and each matrix product, and nothing else: every repetition has hashes
and initial weights of its own, drawn from (seed, repetition), and sees the same batches whatever it is packed with.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from typing_extensions import override

from sparkdl.data import SparseBatch
from sparkdl.extreme.first_layer import Occurrences, add_up, occurrences
from sparkdl.extreme.hashing import FeatureHash

__all__ = ["MetaModels"]

INITIAL_SCALE = 0.05
"""Standard deviation of the first layer's weights: with rows of norm 1, activations start small and grow as needed."""
ROWS_AT_ONCE = 1024
"""Rows of weights that are drawn at a time, so that they stay in a cache."""


def _stacked(batch: SparseBatch, hashes: Sequence[FeatureHash]) -> SparseBatch:
    """The rows of a batch once for each hash, below one another; column c of hash r becomes c len(hashes) + r."""
    known, places = np.unique(batch.indices.numpy(), return_inverse=True)
    columns = [each.columns(known)[places] * len(hashes) + number for number, each in enumerate(hashes)]
    first = torch.arange(len(hashes))[:, None]
    return SparseBatch(
        torch.from_numpy(np.concatenate(columns)),
        batch.values.repeat(len(hashes)),
        torch.cat([(batch.offsets[:-1] + first * len(places)).flatten(), torch.tensor([len(places) * len(hashes)])]),
        batch.labels,
        batch.label_offsets,
    )


class MetaModels(nn.Module):
    """Classifiers over ``num_buckets`` buckets, one for each repetition, from sparse rows of ``width`` features.

    ``hidden`` are the widths of the hidden layers (rectified linear units), none for linear models. The first layer's
    weights are not a parameter: only the rows of features that occur in a batch are read and trained (see
    :mod:`sparkdl.extreme.fit`). With ``feature_hashes``, one for each repetition, ``width`` is the number of columns
    that they map to. Without a ``seed`` no weights are drawn: they are about to be loaded. Runs in a task.
    """

    def __init__(
        self,
        repetitions: Sequence[int],
        *,
        width: int,
        hidden: Sequence[int],
        num_buckets: int,
        feature_hashes: Sequence[FeatureHash] = (),
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.repetitions = tuple(repetitions)
        self._feature_hashes = tuple(feature_hashes)
        sizes = [width, *hidden, num_buckets]
        self.table: torch.Tensor
        """float32 of shape (width, R * first size): the first layer's weights, those of a feature beside each other."""
        self.register_buffer("table", torch.empty(width, len(self.repetitions) * sizes[1]))
        self.weights = nn.ParameterList(
            torch.empty(len(self.repetitions), rows, columns) for rows, columns in pairwise(sizes[1:])
        )
        self.biases = nn.ParameterList(torch.zeros(len(self.repetitions), 1, size) for size in sizes[1:])
        if seed is not None:
            for place, repetition in enumerate(self.repetitions):
                self._draw(place, np.random.Generator(np.random.SFC64([seed % 2**63, repetition])))

    @torch.no_grad()
    def _draw(self, place: int, random: np.random.Generator) -> None:
        """Draw the initial weights of one repetition, in the same order in every pack."""
        if self.weights:
            _fill(self._own_columns(place), INITIAL_SCALE, random)
        else:
            self._own_columns(place).zero_()
        for weight in self.weights:
            _fill(weight[place], weight.shape[1] ** -0.5, random)

    def _own_columns(self, place: int) -> torch.Tensor:
        size = self.biases[0].shape[2]
        return self.table[:, place * size : (place + 1) * size]

    @property
    def rows(self) -> torch.Tensor:
        """The table, as :meth:`occurrences` index it; with hashed features, each repetition has rows of its own."""
        return self.table.view(-1, self.biases[0].shape[2]) if self._feature_hashes else self.table

    def occurrences(self, batch: SparseBatch) -> Occurrences:
        """Where each of the :attr:`rows` occurs in a batch; with hashed features, it is stacked for each repetition."""
        return occurrences(_stacked(batch, self._feature_hashes) if self._feature_hashes else batch)

    @override
    def forward(self, sums: torch.Tensor, drop: Callable[[torch.Tensor], torch.Tensor] | None = None) -> torch.Tensor:
        """Bucket logits of shape (R, n, B) from the sums of the first layer's :attr:`rows`.

        ``drop`` is training's dropout for the values of each hidden layer, of shape (R, n, w).
        """
        repetitions = len(self.repetitions)
        if self._feature_hashes:
            return self.behind_first(sums.unflatten(0, (repetitions, -1)), drop)
        return self.behind_first(sums.unflatten(1, (repetitions, -1)).transpose(0, 1), drop)

    def behind_first(
        self, summed: torch.Tensor, drop: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor:
        """Bucket logits from the first layer's sums for each row, of shape (R, n, first size)."""
        values: torch.Tensor = summed + self.biases[0]
        for weight, bias in zip(self.weights, list(self.biases)[1:], strict=True):
            values = functional.relu(values)
            values = torch.baddbmm(bias, drop(values) if drop else values, weight)
        return values

    @torch.no_grad()
    def logits(self, batch: SparseBatch) -> torch.Tensor:
        """Bucket logits of shape (R, n, B), without training."""
        logits: torch.Tensor = self(add_up(self.rows, self.occurrences(batch)))
        return logits

    def state_of(self, place: int) -> dict[str, torch.Tensor]:
        """The weights of one repetition, by name: those that it would have if it had been trained by itself.

        On a CPU they are views of these networks' weights.
        """
        state = {"table": self._own_columns(place)}
        state |= {f"weight.{layer}": weight[place] for layer, weight in enumerate(self.weights, start=1)}
        state |= {f"bias.{layer}": bias[place, 0] for layer, bias in enumerate(self.biases)}
        return {name: value.detach().cpu() for name, value in state.items()}

    @torch.no_grad()
    def load_state_of(self, place: int, state: dict[str, torch.Tensor]) -> None:
        """Overwrite the weights of one repetition."""
        self._own_columns(place).copy_(state["table"])
        for layer, weight in enumerate(self.weights, start=1):
            weight[place].copy_(state[f"weight.{layer}"])
        for layer, bias in enumerate(self.biases):
            bias[place, 0].copy_(state[f"bias.{layer}"])


def _fill(weights: torch.Tensor, deviation: float, random: np.random.Generator) -> None:
    """Uniform random numbers with this standard deviation around zero, some rows at a time.

    There may be billions of them; normal ones would take several times as long, and sums of many are normal anyway.
    """
    for rows in weights.split(ROWS_AT_ONCE):
        numbers = random.random(rows.shape, np.float32)
        rows.copy_(torch.from_numpy(numbers).sub_(0.5).mul_(deviation * 12**0.5))
