"""What an ensemble says of a column of vectors: its likeliest classes. Runs anywhere; scoring asks it.

A class's probability is the geometric mean of what the repetitions give its bucket: what decoding ranks by, and at
most 1, but not a distribution over all classes, of which most are never looked at.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from sparkdl.data import InputSpec, SparseBatch, decode_sparse
from sparkdl.errors import DataError, ModelError
from sparkdl.extreme.decode import Decoder
from sparkdl.extreme.ensemble import Ensemble

__all__ = ["EnsembleModel", "open_model"]


@dataclass(frozen=True)
class EnsembleModel:
    """An ensemble with its way back to classes, and what goes into it."""

    ensemble: Ensemble
    decoder: Decoder
    input: InputSpec

    def top_k(
        self, column: pa.Array | pa.ChunkedArray, k: int, *, batch_size: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The k likeliest classes of each row and their probabilities, both of shape (n, k).

        ``column`` holds Spark's vectors as :func:`sparkdl.data.decode_sparse` reads them. Raises :class:`DataError` for
        rows that are null, of another width, or give no finite result.
        """
        indices, values, offsets = decode_sparse(column, self.input)
        rows = len(offsets) - 1
        classes, scores = np.empty((rows, k), np.int64), np.empty((rows, k), np.float64)
        for start in range(0, rows, batch_size):
            stop = min(start + batch_size, rows)
            logits = self.ensemble.logits(_batch(indices, values, offsets[start : stop + 1]))
            found = self.decoder.top_k(logits, k)
            classes[start:stop], scores[start:stop] = found.classes.numpy(), found.scores.double().numpy()
        bad = int(np.count_nonzero(~np.isfinite(scores).all(axis=1)))
        if bad:
            raise DataError(f"column {self.input.column!r}: {bad} rows give no finite result; look there for NaN")
        return classes, np.exp(scores)


def open_model(folder: Path, input: InputSpec, num_classes: int) -> EnsembleModel:
    """The ensemble in a model's folder; nothing there is executed.

    Raises :class:`~sparkdl.errors.ModelError` for files that are missing, altered or do not fit together.
    """
    ensemble = Ensemble.open(folder)
    card = ensemble.card
    if (card.width, card.labels.classes) != (input.shape[0], num_classes):
        raise ModelError(
            f"the ensemble in {folder} is for {card.width} features and {card.labels.classes} classes, and its card "
            f"tells of {input.shape[0]} and {num_classes}; the files of two models were mixed"
        )
    return EnsembleModel(ensemble, ensemble.decoder(), input)


def _batch(
    indices: npt.NDArray[np.int32], values: npt.NDArray[np.float32], offsets: npt.NDArray[np.int64]
) -> SparseBatch:
    """Some rows as tensors; they have no labels."""
    entries = slice(offsets[0], offsets[-1])
    return SparseBatch(
        torch.from_numpy(indices[entries].astype(np.int64)),
        torch.from_numpy(np.array(values[entries])),
        torch.from_numpy(offsets - offsets[0]),
        torch.empty(0, dtype=torch.int64),
        torch.zeros(len(offsets), dtype=torch.int64),
    )
