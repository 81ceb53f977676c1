"""Converts settings and columns to MLflow's types: flat parameters without secrets, and signatures of models."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from mlflow.models import ModelSignature
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema
from mlflow.types.schema import AnyType, Array, Object, Property

from sparkdl.errors import TrackingError
from sparkdl.masking import masked

__all__ = ["LOADER_MODULE", "RANKED", "flatten", "ranked", "signature", "with_params"]

LOADER_MODULE = "sparkdl.scoring.pyfunc"
"""The module that loads a registered model: MLflow calls its ``_load_pyfunc`` with the model's folder."""

Type = DataType | Array | Object | AnyType

# Whole numbers are declared as "any": pandas holds them as integers or, where some are missing, as floats, and each of
# MLflow's own types refuses one of the two. Fractions are declared as double, to which MLflow widens the others.
TYPES: dict[str, Type] = {
    **dict.fromkeys(("byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint"), AnyType()),  # type: ignore[no-untyped-call]
    **dict.fromkeys(("float", "real", "double"), DataType.double),
    "any": AnyType(),  # type: ignore[no-untyped-call]  # structs and maps: MLflow refuses fields that it does not know
    "string": DataType.string,
    "boolean": DataType.boolean,
    "binary": DataType.binary,
    **dict.fromkeys(("date", "timestamp", "timestamp_ntz"), DataType.datetime),
}

EXACT = TYPES | {
    **dict.fromkeys(("byte", "tinyint", "short", "smallint", "int", "integer"), DataType.integer),
    **dict.fromkeys(("long", "bigint"), DataType.long),
    **dict.fromkeys(("float", "real"), DataType.float),
}
"""The types of a model's outputs, where no number is missing and MLflow widens nothing."""


def ranked(label_type: str | None) -> dict[str, str]:
    """A classifier's output columns with their Spark SQL types, for labels of a type; None means texts."""
    label = label_type or "string"
    return {
        "prediction": label,
        "probability": "double",
        "top_k": f"array<struct<label:{label},probability:double>>",
    }


RANKED = ranked(None)
MAX_PARAM_LENGTH = 500  # characters; the limit of the oldest supported servers


def flatten(tree: Mapping[str, Any]) -> dict[str, str]:
    """``{"train": {"epochs": 3}}`` as ``{"train.epochs": "3"}``; secrets masked, long values cut with an ellipsis.

    Characters that MLflow does not allow in names become ``_``; otherwise it would refuse all parameters.
    """
    return {re.sub(r"[^/\w.\- :]", "_", name): _shorten(text) for name, text in _leaves(masked(tree), prefix="")}


def _leaves(tree: Mapping[str, Any], *, prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, prefix=f"{name}.")
        else:
            yield name, value if isinstance(value, str) else json.dumps(value)


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_PARAM_LENGTH else text[: MAX_PARAM_LENGTH - 1] + "…"


def signature(
    inputs: Mapping[str, str], outputs: Mapping[str, str] = RANKED, params: Mapping[str, str | int] | None = None
) -> ModelSignature:
    """The signature of a model, from its input and output columns by name and Spark SQL type (such as ``bigint``).

    ``params`` are scoring parameters with their defaults. Raises :class:`TrackingError` for a type that MLflow does not
    have.
    """
    return with_params(ModelSignature(inputs=_schema(inputs, TYPES), outputs=_schema(outputs, EXACT)), params)


def with_params(described: ModelSignature, params: Mapping[str, str | int] | None) -> ModelSignature:
    """The signature with the same columns, and with scoring parameters."""
    kinds = {str: DataType.string, int: DataType.long}
    specs = [ParamSpec(name, kinds[type(value)], value) for name, value in (params or {}).items()]
    schemas: dict[str, Any] = {"params": ParamSchema(specs)} if specs else {}
    return ModelSignature(inputs=described.inputs, outputs=described.outputs, **schemas)


def _schema(columns: Mapping[str, str], types: Mapping[str, Type]) -> Schema:
    return Schema([ColSpec(_type(name, sql_type, types), name) for name, sql_type in columns.items()])


def _type(name: str, sql_type: str, types: Mapping[str, Type]) -> Type:
    """MLflow's type for a Spark SQL type, with arrays and structs of arrays."""
    sql_type = sql_type.strip().lower()
    if match := re.fullmatch(r"array<(.+)>", sql_type):
        return Array(_type(name, match[1], types))
    if match := re.fullmatch(r"struct<(.+)>", sql_type):
        fields = [field.partition(":") for field in re.split(r",(?![^<(]*[>)])", match[1])]
        return Object([Property(field, _type(f"{name}.{field}", type_, types)) for field, _, type_ in fields])
    if sql_type.startswith("decimal"):
        return DataType.double
    if sql_type == "vector":
        return Array(DataType.double)
    if sql_type not in types:
        raise TrackingError(f"the column {name!r} has the type {sql_type!r}, which MLflow cannot describe; cast it")
    return types[sql_type]
