"""Rows of named inputs: from Arrow structs to the tensors that a network takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import pyarrow as pa
import torch

from sparkdl.data.named_files import Rowwise, input_values
from sparkdl.data.ragged import Ragged
from sparkdl.data.reading.collating import named_tensors
from sparkdl.errors import DataError
from sparkdl.inputs.spec import InputSpec

__all__ = ["NamedColumns"]


@dataclass(frozen=True)
class NamedColumns:
    """The values of named inputs, for some rows."""

    values: Mapping[str, Rowwise]
    specs: Mapping[str, InputSpec]

    @classmethod
    def of(cls, column: pa.Array | pa.ChunkedArray, specs: Mapping[str, InputSpec]) -> Self:
        """The inputs in a column of structs. Raises :class:`DataError` for null rows and for other fields."""
        structs = pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column
        names = {field.name for field in structs.type} if pa.types.is_struct(structs.type) else set()
        if names != specs.keys():
            raise DataError(f"the model reads the inputs {', '.join(specs)}, but the rows have {structs.type}")
        if structs.null_count:
            raise DataError(f"{structs.null_count} rows are null; fill or drop them")
        flat = dict(zip((field.name for field in structs.type), structs.flatten(), strict=True))
        return cls({name: input_values(flat[name], spec) for name, spec in specs.items()}, specs)

    def __len__(self) -> int:
        first = next(iter(self.values.values()))
        return first.rows if isinstance(first, Ragged) else len(first)

    def tensors(self, rows: slice) -> dict[str, torch.Tensor]:
        """A slice of the rows as tensors, copied."""
        some = {name: each.take(rows) if isinstance(each, Ragged) else each[rows] for name, each in self.values.items()}
        return named_tensors(some, self.specs)
