"""The labels' own type, in which predictions of classes are returned. Runs anywhere."""

import re
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa

__all__ = ["LABEL_TYPE", "arrow_type", "labels_from_names"]

LABEL_TYPE = r"tinyint|smallint|int|bigint|float|double|boolean|string|date|decimal\([1-9]\d?,\d\d?\)"
"""The Spark SQL types that class labels can have."""
_KINDS = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "date": pa.date32(),
}


def arrow_type(label_type: str | None) -> pa.DataType:
    """The Arrow type of a label's Spark SQL type; texts if a card does not state it, as in older versions."""
    if label_type is None or label_type in _KINDS:
        return _KINDS[label_type or "string"]
    precision, scale = map(int, re.findall(r"\d+", label_type))
    return pa.decimal128(precision, scale)


def labels_from_names(names: pa.Array | Sequence[str], label_type: str | None) -> pa.Array:
    """Class names, which are texts, as labels of their own type. Raises ValueError for a name that is not valid."""
    kind, texts = arrow_type(label_type), pa.array(names, pa.string()) if not isinstance(names, pa.Array) else names
    if not pa.types.is_decimal(kind):
        return texts.cast(kind)
    try:
        return pa.array(map(Decimal, texts.to_pylist()), kind)
    except ArithmeticError as error:
        raise ValueError(f"the name of a class is not a valid {label_type}: {error!r}") from None
