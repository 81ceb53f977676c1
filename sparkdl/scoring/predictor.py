"""From a column of inputs to labels and probabilities. Runs anywhere."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkdl.data.card import InputSpec
from sparkdl.scoring.model_card import ModelCard
from sparkdl.settings.score import BATCH_SIZE, TOP_K

__all__ = ["COLUMNS", "Model", "Predictor"]

COLUMNS = ("prediction", "probability", "top_k")
"""The columns of an answer: label, its probability, and a list of (label, probability)."""


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
        return cls(_open_model(Path(folder), card.input, len(names)), card, names)

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


def _open_model(folder: Path, input: InputSpec, num_classes: int) -> Model:
    """A network or an ensemble of hashed meta-models, of which neither loads what only the other needs."""
    if input.kind == "sparse":
        from sparkdl.extreme.ensemble import open_model as open_ensemble

        return open_ensemble(folder, input, num_classes)
    from sparkdl.scoring.network import open_model as open_network

    return open_network(folder, input, num_classes)
