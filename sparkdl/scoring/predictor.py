"""From decoded rows to labels and probabilities. Runs anywhere."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import nn

from sparkdl.data.decode import decode
from sparkdl.errors import DataError
from sparkdl.models import NETWORK_FILE, load_network
from sparkdl.scoring.card import ModelCard

__all__ = ["BATCH_SIZE", "COLUMNS", "TOP_K", "Predictor"]

BATCH_SIZE = 256
"""Rows per forward pass: what fits into a core's cache is faster than more (measured on ``cnn``: 142 µs a row, and 252
with 1,024)."""
TOP_K = 5

COLUMNS = ("prediction", "probability", "top_k")
"""The columns of an answer: label, its probability, and a list of (label, probability)."""


@dataclass(frozen=True)
class Predictor:
    """A network, and the card that tells what goes in and what the classes are called."""

    network: nn.Module
    card: ModelCard

    @classmethod
    def load(cls, folder: str | Path) -> "Predictor":
        """Open a model's folder; see :func:`sparkdl.tracking.download`.

        Raises :class:`~sparkdl.errors.ModelError` if the network or the card is missing or damaged. Nothing in the
        folder is executed.
        """
        return cls(load_network(Path(folder) / NETWORK_FILE), ModelCard.load(folder))

    def predict(self, rows: npt.NDArray[np.generic], *, batch_size: int = BATCH_SIZE) -> npt.NDArray[np.float32]:
        """Probabilities of shape (n, classes) for inputs of shape (n, ...) as the card tells; n may be 0.

        Raises :class:`DataError` for another shape and for rows whose result is not a number, with their count.
        """
        shape = self.card.input.shape
        if rows.shape[1:] != shape:
            raise DataError(
                f"column {self.card.input.column!r}: the model reads rows of shape {shape}, not {rows.shape[1:]}"
            )
        probabilities = torch.empty(len(rows), len(self.card.label_names))
        with torch.inference_mode():
            for start in range(0, len(rows), batch_size):
                # Copied, because Arrow's memory must not be written to and a network may work in place.
                batch = torch.from_numpy(np.array(rows[start : start + batch_size], dtype=self.card.input.dtype))
                logits = self.network(batch)
                torch.softmax(logits.float(), dim=1, out=probabilities[start : start + batch_size])
            bad = int((~torch.isfinite(probabilities).all(dim=1)).sum())
        if bad:
            raise DataError(
                f"column {self.card.input.column!r}: {bad} rows give no finite result; look there for NaN, infinity and"
                " extreme values"
            )
        result: npt.NDArray[np.float32] = probabilities.numpy()
        return result

    def answer(
        self, column: pa.Array | pa.ChunkedArray, *, top_k: int = TOP_K, batch_size: int = BATCH_SIZE
    ) -> list[pa.Array]:
        """The Arrow arrays of :data:`COLUMNS` for an Arrow column of inputs.

        ``top_k`` lists that many classes, or all if there are fewer, the likeliest first. Raises :class:`DataError`
        for rows that are null or of another size.
        """
        probabilities = torch.from_numpy(self.predict(decode(column, self.card.input), batch_size=batch_size))
        values, indices = probabilities.topk(min(top_k, probabilities.shape[1]), dim=1)
        names = pa.array(self.card.label_names, pa.string())
        labels = names.take(pa.array(indices.flatten().numpy()))
        doubles = pa.array(values.double().flatten().numpy())
        pairs = pa.StructArray.from_arrays([labels, doubles], names=["label", "probability"])
        rows, k = values.shape
        offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * k)
        first = pa.array(np.arange(rows, dtype=np.int64) * k)
        return [labels.take(first), doubles.take(first), pa.ListArray.from_arrays(offsets, pairs)]
