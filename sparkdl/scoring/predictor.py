"""From a column of inputs to labels and probabilities. Runs anywhere."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkdl.scoring.card import ModelCard

__all__ = ["BATCH_SIZE", "COLUMNS", "TOP_K", "Model", "Predictor"]

BATCH_SIZE = 256
"""Rows per forward pass: what fits into a core's cache is faster than more (measured on ``cnn``: 142 µs a row, and 252
with 1,024)."""
TOP_K = 5

COLUMNS = ("prediction", "probability", "top_k")
"""The columns of an answer: label, its probability, and a list of (label, probability)."""

OPENERS = {
    "image": "sparkdl.scoring.network",
    "vector": "sparkdl.scoring.network",
    "sparse": "sparkdl.extreme.ensemble",
}
"""The module whose ``open_model`` opens a model's folder, by the kind of its inputs. A name, because networks and
ensembles of hashed meta-models know nothing of each other, and neither loads what only the other needs."""


class Model(Protocol):
    """What scoring asks of a model."""

    def top_k(
        self, column: pa.Array | pa.ChunkedArray, k: int, *, batch_size: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The k likeliest classes of each row, best first, and their probabilities, both of shape (n, k).

        Raises :class:`~sparkdl.errors.DataError` for rows that it cannot read.
        """


@dataclass(frozen=True)
class Predictor:
    """A model, and the card that tells what goes in and what the classes are called."""

    model: Model
    card: ModelCard
    label_names: pa.Array
    """Strings, by class index."""

    @classmethod
    def load(cls, folder: str | Path) -> "Predictor":
        """Open a model's folder; see :func:`sparkdl.tracking.download`.

        Raises :class:`~sparkdl.errors.ModelError` if something in it is missing, damaged, or was altered. Nothing in
        the folder is executed.
        """
        card = ModelCard.load(folder)
        names = card.read_label_names(folder)
        return cls(
            import_module(OPENERS[card.input.kind]).open_model(Path(folder), card.input, len(names)), card, names
        )

    def answer(
        self, column: pa.Array | pa.ChunkedArray, *, top_k: int = TOP_K, batch_size: int = BATCH_SIZE
    ) -> list[pa.Array]:
        """The Arrow arrays of :data:`COLUMNS` for an Arrow column of inputs.

        ``top_k`` lists that many classes, or all if there are fewer, the likeliest first. Raises
        :class:`~sparkdl.errors.DataError` for rows that are null or of another size.
        """
        classes, probabilities = self.model.top_k(column, min(top_k, len(self.label_names)), batch_size=batch_size)
        labels = self.label_names.take(pa.array(classes.flatten()))
        doubles = pa.array(probabilities.flatten())
        pairs = pa.StructArray.from_arrays([labels, doubles], names=["label", "probability"])
        rows, k = classes.shape
        offsets = pa.array(np.arange(rows + 1, dtype=np.int32) * k)
        first = pa.array(np.arange(rows, dtype=np.int64) * k)
        return [labels.take(first), doubles.take(first), pa.ListArray.from_arrays(offsets, pairs)]
