"""What goes into a registered model and what comes out of it, in MLflow's words."""

import re
from collections.abc import Mapping

from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, Schema
from mlflow.types.schema import AnyType, Array, Object, Property

from sparkdl.errors import TrackingError

__all__ = ["LOADER_MODULE", "signature"]

LOADER_MODULE = "sparkdl.scoring.pyfunc"
"""The module that opens a registered model: MLflow calls its ``_load_pyfunc`` with the model's folder."""

Type = DataType | Array | Object | AnyType

# Whole numbers are declared as "any": pandas holds them as integers or, where some are missing, as floats, and each of
# MLflow's own types refuses one of the two. Fractions are declared as double, to which MLflow widens the others.
TYPES: dict[str, Type] = {
    **dict.fromkeys(("byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint"), AnyType()),  # type: ignore[no-untyped-call]
    **dict.fromkeys(("float", "real", "double"), DataType.double),
    "string": DataType.string,
    "boolean": DataType.boolean,
    "binary": DataType.binary,
    **dict.fromkeys(("date", "timestamp", "timestamp_ntz"), DataType.datetime),
}

OUTPUTS = Schema(
    [
        ColSpec(DataType.string, "prediction"),
        ColSpec(DataType.double, "probability"),
        ColSpec(Array(Object([Property("label", DataType.string), Property("probability", DataType.double)])), "top_k"),
    ]
)


def signature(columns: Mapping[str, str]) -> ModelSignature:
    """The signature of a model that reads raw columns, given as name and Spark SQL type (``bigint``, ``binary``).

    Raises :class:`TrackingError` for a type that MLflow has no word for.
    """
    return ModelSignature(
        inputs=Schema([ColSpec(_type(name, sql_type), name) for name, sql_type in columns.items()]), outputs=OUTPUTS
    )


def _type(name: str, sql_type: str) -> Type:
    """MLflow's word for a Spark SQL type, arrays and structs of arrays included."""
    sql_type = sql_type.strip().lower()
    if match := re.fullmatch(r"array<(.+)>", sql_type):
        return Array(_type(name, match[1]))
    if match := re.fullmatch(r"struct<(.+)>", sql_type):
        fields = [field.partition(":") for field in re.split(r",(?![^<(]*[>)])", match[1])]
        return Object([Property(field, _type(f"{name}.{field}", type_)) for field, _, type_ in fields])
    if sql_type.startswith("decimal"):
        return DataType.double
    if sql_type == "vector":
        return Array(DataType.double)
    if sql_type not in TYPES:
        raise TrackingError(f"the column {name!r} has the type {sql_type!r}, which MLflow cannot describe; cast it")
    return TYPES[sql_type]
