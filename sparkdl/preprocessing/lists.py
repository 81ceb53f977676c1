"""A stage for arrays of numbers of different lengths: the ids or events of a row, or its time series."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from sparkdl.errors import DataError
from sparkdl.preprocessing.raw_vectors import is_list
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.values import Column, find, is_number, offsets_of

__all__ = ["NO_ID", "ShortenedLists", "as_ids", "shortened"]

NO_ID = -1
"""Replaces values that are not whole numbers from 0 to :data:`LARGEST_ID`."""
LARGEST_ID = 2**31 - 2
"""The largest id; no embedding table has more rows."""


@dataclass(frozen=True)
class ShortenedLists(FittedStage):
    """Lists of numbers in the type of an input; null becomes an empty list."""

    input: str
    output: str
    kind: Literal["int32", "float32"]
    """int32 for ids, where invalid ones become :data:`NO_ID`; float32 for series, where missing numbers are NaN."""
    length: int | None = None
    """The number of elements to which longer lists are cut; None keeps all."""

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        column: Any = find(columns, self.input)
        if not isinstance(column, pa.Array) or not is_list(column.type) or not is_number(column.type.value_type):
            raise DataError(f"the column {self.input!r} holds no arrays of numbers")
        lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        numbers = column.flatten()
        if self.kind == "int32":
            if numbers.null_count:
                numbers = numbers.fill_null(NO_ID)
            values = as_ids(numbers.to_numpy(zero_copy_only=False))
        else:
            if numbers.null_count:
                numbers = numbers.cast(pa.float64()).fill_null(np.nan)
            with np.errstate(over="ignore"):  # too large for float32 becomes infinity
                values = numbers.to_numpy(zero_copy_only=False).astype(np.float32)
        found = pa.ListArray.from_arrays(pa.array(offsets_of(lengths).astype(np.int32)), pa.array(values))
        return {self.output: found if self.length is None else shortened(found, self.length)}


def as_ids(numbers: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Numbers as int32; :data:`NO_ID` replaces those that are not whole numbers from 0 to :data:`LARGEST_ID`."""
    with np.errstate(invalid="ignore"):
        fits = (numbers >= 0) & (numbers <= LARGEST_ID)
        if numbers.dtype.kind == "f":
            fits &= numbers == np.trunc(numbers)
    return np.where(fits, numbers, NO_ID).astype(np.int32)


def shortened(lists: pa.Array, length: int) -> pa.Array:
    """The lists, cut to at most ``length`` elements."""
    lengths = np.asarray(lists.value_lengths())
    if not len(lengths) or lengths.max() <= length:
        return lists
    places = np.arange(int(lengths.sum())) - np.repeat(offsets_of(lengths)[:-1], lengths)
    kept = lists.flatten().filter(pa.array(places < length))
    return pa.ListArray.from_arrays(pa.array(offsets_of(np.minimum(lengths, length)).astype(np.int32)), kept)
