"""A network over decoded rows. Runs anywhere."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from scipy import sparse
from torch import nn

from sparkdl.data.card import InputSpec
from sparkdl.data.reading.arrays import decode, require_finite
from sparkdl.data.sparse_rows import decode_sparse
from sparkdl.errors import DataError
from sparkdl.inputs.tensors import answer
from sparkdl.models import LOGITS, NETWORK_FILE, load_network, logits_of, output_of
from sparkdl.scoring.contributions import contributions
from sparkdl.settings.score import BATCH_SIZE

__all__ = ["NetworkModel", "open_model"]


@dataclass(frozen=True)
class NetworkModel:
    """A network, what goes into it, and what comes out."""

    network: nn.Module
    input: InputSpec
    shapes: Mapping[str, Sequence[int]]
    """Of the outputs that are asked for, for a row."""
    device: str = "cpu"
    """Where the network is, and computes."""

    def outputs(self, column: pa.Array | pa.ChunkedArray, *, batch_size: int) -> dict[str, torch.Tensor]:
        """The outputs for an Arrow column by their names: float32 of shape (n, ...), in the CPU's memory.

        Raises :class:`DataError` for rows that are null, of another size, not finite, or give no finite result.
        """
        return self.outputs_of(self._rows(column), batch_size=batch_size)

    def contributions(
        self,
        column: pa.Array | pa.ChunkedArray,
        values: Callable[[torch.Tensor], torch.Tensor],
        *,
        batch_size: int,
    ) -> torch.Tensor:
        """What each feature contributes to the largest of the ``values`` of outputs: float64, (n, features + 1).

        See :func:`sparkdl.scoring.contributions.contributions`. The column holds vectors that :meth:`outputs` takes.
        """
        rows = self._rows(column)
        found = torch.empty(rows.shape[0], self.input.shape[0] + 1, dtype=torch.float64)
        for start in range(0, rows.shape[0], batch_size):
            batch = _whole(rows[start : start + batch_size], "float32").to(self.device)
            found[start : start + batch_size] = contributions(
                lambda places: values(logits_of(self.network(places))), batch
            )
        return found

    def _rows(self, column: pa.Array | pa.ChunkedArray) -> Any:
        """What :meth:`outputs_of` takes."""
        if self.input.kind == "sparse":
            indices, values, offsets = decode_sparse(column, self.input)
            require_finite(values, self.input)
            return sparse.csr_array((values, indices, offsets), shape=(len(offsets) - 1, *self.input.shape))
        rows = decode(column, self.input)
        require_finite(rows, self.input)
        return rows

    def outputs_of(self, rows: Any, *, batch_size: int = BATCH_SIZE) -> dict[str, torch.Tensor]:
        """The same for an array of shape (n, ...), or a sparse one, which becomes whole a batch at a time.

        Raises :class:`DataError` for another shape and for rows whose result is not a number, with their count.
        """
        if rows.shape[1:] != self.input.shape:
            raise DataError(
                f"column {self.input.column!r}: the model reads rows of shape {self.input.shape}, not {rows.shape[1:]}"
            )
        outputs = {name: torch.empty(rows.shape[0], *shape) for name, shape in self.shapes.items()}
        with torch.inference_mode():
            for start in range(0, rows.shape[0], batch_size):
                batch = _whole(rows[start : start + batch_size], self.input.dtype).to(self.device)
                answered = answer(self.network, batch)
                for name, output in outputs.items():
                    output[start : start + batch_size] = output_of(answered, name)
            bad = int(torch.stack([_is_bad(name, output) for name, output in outputs.items()]).any(dim=0).sum())
        if bad:
            raise DataError(
                f"column {self.input.column!r}: {bad} rows give no finite result; look there for NaN, infinity and"
                " extreme values"
            )
        return outputs


def _is_bad(name: str, output: torch.Tensor) -> torch.Tensor:
    """Which rows have no finite result. One logit may be minus infinity, where a network rules a class out."""
    if name == LOGITS:
        return ~torch.isfinite(output.logsumexp(dim=1))
    return ~torch.isfinite(output if output.ndim == 1 else output.sum(dim=1))


def _whole(rows: Any, dtype: Any) -> torch.Tensor:
    """Rows as a tensor: copied, because Arrow's memory must not be written to and a network may work in place."""
    return torch.from_numpy(np.array(rows if isinstance(rows, np.ndarray) else rows.toarray(), dtype=dtype))


def open_model(
    folder: Path,
    input: InputSpec,
    shapes: Mapping[str, Sequence[int]],
    *,
    device: str = "cpu",
    trusted: Collection[str] = (),
) -> NetworkModel:
    """The network in a model's folder, on a device, for outputs of these shapes.

    Nothing there is executed, but code that a network which is not exported names, where its module is ``trusted``.

    Raises :class:`~sparkdl.errors.ModelError` if it is missing or damaged.
    """
    return NetworkModel(load_network(folder / NETWORK_FILE, trusted=trusted).to(device), input, shapes, device)
