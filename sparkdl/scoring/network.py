"""A network over decoded rows: probabilities of all classes, and the likeliest of them. Runs anywhere."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import nn

from sparkdl.data.card import InputSpec
from sparkdl.data.reading.arrays import decode
from sparkdl.errors import DataError
from sparkdl.models import NETWORK_FILE, load_network
from sparkdl.settings.score import BATCH_SIZE

__all__ = ["NetworkModel", "open_model"]


@dataclass(frozen=True)
class NetworkModel:
    """A network, what goes into it, and how many classes come out."""

    network: nn.Module
    input: InputSpec
    num_classes: int

    def predict(self, rows: npt.NDArray[np.generic], *, batch_size: int = BATCH_SIZE) -> npt.NDArray[np.float32]:
        """Probabilities of shape (n, classes) for inputs of shape (n, ...); n may be 0.

        Raises :class:`DataError` for another shape and for rows whose result is not a number, with their count.
        """
        if rows.shape[1:] != self.input.shape:
            raise DataError(
                f"column {self.input.column!r}: the model reads rows of shape {self.input.shape}, not {rows.shape[1:]}"
            )
        probabilities = torch.empty(len(rows), self.num_classes)
        with torch.inference_mode():
            for start in range(0, len(rows), batch_size):
                # Copied, because Arrow's memory must not be written to and a network may work in place.
                batch = torch.from_numpy(np.array(rows[start : start + batch_size], dtype=self.input.dtype))
                logits = self.network(batch)
                torch.softmax(logits.float(), dim=1, out=probabilities[start : start + batch_size])
            bad = int((~torch.isfinite(probabilities).all(dim=1)).sum())
        if bad:
            raise DataError(
                f"column {self.input.column!r}: {bad} rows give no finite result; look there for NaN, infinity and"
                " extreme values"
            )
        result: npt.NDArray[np.float32] = probabilities.numpy()
        return result

    def top_k(
        self, column: pa.Array | pa.ChunkedArray, k: int, *, batch_size: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """The k likeliest classes of each row and their probabilities, both of shape (n, k), from an Arrow column.

        Raises :class:`DataError` for rows that are null, of another size, or give no finite result.
        """
        probabilities = torch.from_numpy(self.predict(decode(column, self.input), batch_size=batch_size))
        found = probabilities.topk(k, dim=1)
        return found.indices.numpy(), found.values.double().numpy()


def open_model(folder: Path, input: InputSpec, num_classes: int) -> NetworkModel:
    """The network in a model's folder; nothing there is executed.

    Raises :class:`~sparkdl.errors.ModelError` if it is missing or damaged.
    """
    return NetworkModel(load_network(folder / NETWORK_FILE), input, num_classes)
