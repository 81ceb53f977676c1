"""Missing numbers."""

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from typing_extensions import override

from sparkdl.errors import DataError
from sparkdl.preprocessing.saved import SavedStage
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.values import Column, doubles, find

__all__ = ["Impute", "nearest_decimals"]


@dataclass(frozen=True)
class Impute(FittedStage):
    """``ImputerModel``: a column's surrogate stands in for what is null or NaN; a column keeps its type."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    surrogates: tuple[float, ...]

    @classmethod
    @override
    def read(cls, saved: SavedStage) -> Self:
        saved.require(missingValue="NaN")
        fitted = saved.fitted()
        surrogates = [fitted.get(name) for name in saved.names("inputCol")]
        if not all(isinstance(value, float) for value in surrogates):
            raise saved.damaged(f"its surrogates are {surrogates!r}")
        return cls(saved.inputs, saved.outputs, tuple(map(float, surrogates)))  # type: ignore[arg-type]

    @override
    def transform(self, columns: dict[str, Column]) -> dict[str, Column]:
        return {
            output: _filled(columns, name, surrogate)
            for name, output, surrogate in zip(self.inputs, self.outputs, self.surrogates, strict=True)
        }


def _filled(columns: dict[str, Column], name: str, surrogate: float) -> pa.Array:
    column = find(columns, name)
    if not isinstance(column, pa.Array) or not (
        pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_decimal(column.type)
    ):
        raise DataError(f"the column {name!r} holds no numbers, which missing ones could be filled in for")
    values = doubles(column)
    values = np.where(np.isnan(values), surrogate, values)
    if pa.types.is_decimal(column.type):
        return nearest_decimals(values, column.type)
    if pa.types.is_integer(column.type):  # as Spark casts a double: towards zero
        return pa.array(np.trunc(values).astype(column.type.to_pandas_dtype()))
    return pa.array(values.astype(column.type.to_pandas_dtype()))


def nearest_decimals(values: NDArray[np.float64], kind: pa.DataType) -> pa.Array:
    """Numbers as decimals of a type, halves away from zero as in Spark; null what does not fit into it."""
    place = Decimal(1).scaleb(-kind.scale)
    with localcontext() as context:
        context.prec = 100
        found = [Decimal(repr(float(value))) for value in values]
        near = [value.quantize(place, ROUND_HALF_UP) if value.is_finite() else None for value in found]
    limit = Decimal(1).scaleb(kind.precision - kind.scale)
    return pa.array([None if value is None or abs(value) >= limit else value for value in near], kind)
