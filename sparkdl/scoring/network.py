"""Applies a network to decoded rows. Runs anywhere."""

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
from sparkdl.inputs.tensors import Inputs, answer, moved
from sparkdl.models import LOGITS, logits_of, output_of
from sparkdl.scoring.contributions import contributions
from sparkdl.scoring.likelihood import log_likelihoods
from sparkdl.scoring.named_columns import NamedColumns
from sparkdl.scoring.open_form import open_network
from sparkdl.settings.compress import FormChoice
from sparkdl.settings.score import BATCH_SIZE

__all__ = ["NetworkModel", "open_model"]


@dataclass(frozen=True)
class NetworkModel:
    """A network with the specifications of its inputs and outputs."""

    network: nn.Module
    inputs: InputSpec | Mapping[str, InputSpec]
    """The only input, or several by name."""
    shapes: Mapping[str, Sequence[int]]
    """The shape per row of each output that is requested."""
    device: str = "cpu"
    """The device on which the network computes."""

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
        """The contribution of each feature to the largest of ``values(logits)``: float64 of shape (n, features + 1).

        See :func:`sparkdl.scoring.contributions.contributions`. The column holds vectors as for :meth:`outputs`.
        """
        rows = self._rows(column)
        found = torch.empty(rows.shape[0], self.input.shape[0] + 1, dtype=torch.float64)
        for start in range(0, rows.shape[0], batch_size):
            batch = _whole(rows[start : start + batch_size], "float32").to(self.device)
            found[start : start + batch_size] = contributions(
                lambda places: values(logits_of(self.network(places))), batch
            )
        return found

    def log_likelihoods(self, column: pa.Array | pa.ChunkedArray, *, batch_size: int) -> torch.Tensor:
        """For networks that predict the next token: see :func:`sparkdl.scoring.likelihood.log_likelihoods`."""
        return log_likelihoods(self.network, self._rows(column), batch_size=batch_size, device=self.device)

    @property
    def input(self) -> InputSpec:
        """The only input."""
        assert isinstance(self.inputs, InputSpec)
        return self.inputs

    @property
    def _where(self) -> str:
        if isinstance(self.inputs, InputSpec):
            return f"column {self.input.column!r}"
        return f"inputs {', '.join(self.inputs)}"

    def _rows(self, column: pa.Array | pa.ChunkedArray) -> Any:
        """The column decoded for :meth:`outputs_of`."""
        if not isinstance(self.inputs, InputSpec):
            return NamedColumns.of(column, self.inputs)
        if self.input.kind == "sparse":
            indices, values, offsets = decode_sparse(column, self.input)
            require_finite(values, self.input)
            return sparse.csr_array((values, indices, offsets), shape=(len(offsets) - 1, *self.input.shape))
        rows = decode(column, self.input)
        require_finite(rows, self.input)
        return rows

    def outputs_of(self, rows: Any, *, batch_size: int = BATCH_SIZE) -> dict[str, torch.Tensor]:
        """The same for rows that are already decoded: an array of shape (n, ...), a sparse array, or named inputs.

        Sparse rows become dense batch by batch. Raises :class:`DataError` for another shape, and, with their number, if
        some rows give no finite result.
        """
        named = isinstance(rows, NamedColumns)
        if not named and rows.shape[1:] != self.input.shape:
            raise DataError(
                f"column {self.input.column!r}: the model reads rows of shape {self.input.shape}, not {rows.shape[1:]}"
            )
        count = len(rows) if named else rows.shape[0]
        outputs = {name: torch.empty(count, *shape) for name, shape in self.shapes.items()}
        with torch.inference_mode():
            for start in range(0, count, batch_size):
                some = slice(start, start + batch_size)
                batch: Inputs = rows.tensors(some) if named else _whole(rows[some], self.input.dtype)
                answered = answer(self.network, moved(batch, self.device))
                for name, output in outputs.items():
                    output[some] = output_of(answered, name)
            bad = int(torch.stack([_is_bad(name, output) for name, output in outputs.items()]).any(dim=0).sum())
        if bad:
            raise DataError(
                f"{self._where}: {bad} rows give no finite result; look for NaN, infinity and extreme values in them"
            )
        return outputs


def _is_bad(name: str, output: torch.Tensor) -> torch.Tensor:
    """Which rows have no finite result. Single logits may be minus infinity: the network rules out that class."""
    if name == LOGITS:
        return ~torch.isfinite(output.logsumexp(dim=1))
    return ~torch.isfinite(output if output.ndim == 1 else output.sum(dim=1))


def _whole(rows: Any, dtype: Any) -> torch.Tensor:
    """Rows as a dense tensor. They are copied: a network may work in place, and Arrow's memory is read-only."""
    return torch.from_numpy(np.array(rows if isinstance(rows, np.ndarray) else rows.toarray(), dtype=dtype))


def open_model(
    folder: Path,
    inputs: InputSpec | Mapping[str, InputSpec],
    shapes: Mapping[str, Sequence[int]],
    *,
    device: str = "cpu",
    trusted: Collection[str] = (),
    form: FormChoice = "original",
) -> NetworkModel:
    """The network in a model's folder, in one of its forms and on a device, for outputs of these shapes.

    Nothing in the folder is executed. A network that could not be exported is built by the code of its module, which
    must be ``trusted``.

    Raises :class:`~sparkdl.errors.ModelError` if the network is missing, damaged or not trusted, and
    :class:`~sparkdl.errors.ConfigError` for a form that the model does not have.
    """
    network, device = open_network(folder, form, inputs, device=device, trusted=trusted)
    return NetworkModel(network, inputs, shapes, device)
