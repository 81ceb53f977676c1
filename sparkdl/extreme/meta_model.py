"""Small classifiers over buckets, several of them packed into one computation.

Repetitions that share a task share each batch and each matrix product, and nothing else: every repetition has hashes
and initial weights of its own, drawn from (seed, repetition), and sees the same batches whatever it is packed with.
"""

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional
from typing_extensions import override

from sparkdl.data import SparseBatch
from sparkdl.extreme.hashing import FeatureHash

__all__ = ["MetaModels", "SparseInput", "sparse_input"]

# PyTorch says so at the first compressed matrix of every process; what is used of it here is tested.
warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta", category=UserWarning)

INITIAL_SCALE = 0.05
"""Standard deviation of the first layer's weights: with rows of norm 1, activations start small and grow as needed."""


class SparseInput:
    """A batch as a matrix over the features that occur in it, and its transpose for back-propagation."""

    def __init__(self, features: torch.Tensor, matrix: torch.Tensor, transposed: torch.Tensor) -> None:
        self.features = features
        """int64 of shape (u,): the features that occur."""
        self.matrix = matrix
        """Compressed rows, of shape (n, u)."""
        self.transposed = transposed
        """Compressed rows, of shape (u, n)."""


def sparse_input(batch: SparseBatch, device: torch.device | str = "cpu") -> SparseInput:
    """Number the features of a batch from 0, and compress it by rows and by columns."""
    rows = len(batch.offsets) - 1
    features, places = np.unique(batch.indices.numpy(), return_inverse=True)
    by_column = np.argsort(places, kind="stable")
    row_of = np.repeat(np.arange(rows), np.diff(batch.offsets.numpy()))
    column_ends = np.concatenate([[0], np.cumsum(np.bincount(places, minlength=len(features)))])
    matrix = _compressed(batch.offsets.numpy(), places, batch.values, (rows, len(features)), device)
    transposed = _compressed(
        column_ends, row_of[by_column], batch.values[torch.from_numpy(by_column)], (len(features), rows), device
    )
    return SparseInput(torch.from_numpy(features).to(device), matrix, transposed)


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


def _compressed(
    ends: NDArray[np.int64],
    places: NDArray[np.int64],
    values: torch.Tensor,
    shape: tuple[int, int],
    device: torch.device | str,
) -> torch.Tensor:
    return torch.sparse_csr_tensor(
        torch.from_numpy(ends.astype(np.int64)),
        torch.from_numpy(places.astype(np.int64)),
        values,
        size=shape,
        device=device,
        check_invariants=False,
    )


class _Product(torch.autograd.Function):
    """A sparse matrix times a dense one; the gradient of the dense one is the transposed matrix times the gradient."""

    @staticmethod
    @override
    def forward(context: Any, dense: torch.Tensor, matrix: torch.Tensor, transposed: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        context.transposed = transposed
        return matrix @ dense

    @staticmethod
    @override
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        return context.transposed @ gradient, None, None


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
                self._draw(place, torch.Generator().manual_seed(_mixed(seed, repetition)))

    def _draw(self, place: int, random: torch.Generator) -> None:
        """Initial weights of one repetition."""
        with torch.no_grad():
            own = self._own_columns(place)
            if self.weights:  # in memory order, whatever the pack
                own.copy_(torch.empty(own.shape).normal_(0.0, INITIAL_SCALE, generator=random))
            else:
                own.zero_()
            for weight in self.weights:
                weight[place].normal_(0.0, weight.shape[1] ** -0.5, generator=random)

    def _own_columns(self, place: int) -> torch.Tensor:
        size = self.biases[0].shape[2]
        return self.table[:, place * size : (place + 1) * size]

    @property
    def rows(self) -> torch.Tensor:
        """The table as what the features of :meth:`input_of` number: hashed, each repetition has rows of its own."""
        return self.table.view(-1, self.biases[0].shape[2]) if self._feature_hashes else self.table

    def input_of(self, batch: SparseBatch) -> SparseInput:
        """A batch as :meth:`forward` takes it."""
        return sparse_input(_stacked(batch, self._feature_hashes) if self._feature_hashes else batch, self.table.device)

    @override
    def forward(self, used: torch.Tensor, batch: SparseInput) -> torch.Tensor:
        """Bucket logits of shape (R, n, B). ``used`` are the :attr:`rows` of the batch's features."""
        summed: torch.Tensor = _Product.apply(used, batch.matrix, batch.transposed)  # type: ignore[no-untyped-call]
        repetitions = len(self.repetitions)
        if self._feature_hashes:
            return self.behind_first(summed.unflatten(0, (repetitions, -1)))
        return self.behind_first(summed.unflatten(1, (repetitions, -1)).transpose(0, 1))

    def behind_first(self, summed: torch.Tensor) -> torch.Tensor:
        """Bucket logits from what the first layer adds up for each row, of shape (R, n, first size)."""
        values: torch.Tensor = summed + self.biases[0]
        for weight, bias in zip(self.weights, list(self.biases)[1:], strict=True):
            values = torch.baddbmm(bias, functional.relu(values), weight)
        return values

    @torch.no_grad()
    def logits(self, batch: SparseBatch) -> torch.Tensor:
        """Bucket logits of shape (R, n, B), without training."""
        prepared = self.input_of(batch)
        logits: torch.Tensor = self(self.rows.index_select(0, prepared.features), prepared)
        return logits

    def state_of(self, place: int) -> dict[str, torch.Tensor]:
        """The weights of one repetition, by name: those that it would have if it had been trained by itself."""
        state = {"table": self._own_columns(place)}
        state |= {f"weight.{layer}": weight[place] for layer, weight in enumerate(self.weights, start=1)}
        state |= {f"bias.{layer}": bias[place, 0] for layer, bias in enumerate(self.biases)}
        return {name: value.detach().cpu().contiguous() for name, value in state.items()}

    @torch.no_grad()
    def load_state_of(self, place: int, state: dict[str, torch.Tensor]) -> None:
        """Overwrite the weights of one repetition."""
        self._own_columns(place).copy_(state["table"])
        for layer, weight in enumerate(self.weights, start=1):
            weight[place].copy_(state[f"weight.{layer}"])
        for layer, bias in enumerate(self.biases):
            bias[place, 0].copy_(state[f"bias.{layer}"])


def _mixed(seed: int, repetition: int) -> int:
    """One seed from two numbers, the same on every platform."""
    return int(np.random.SeedSequence([seed % 2**63, repetition]).generate_state(1, np.uint64)[0] >> np.uint64(1))
