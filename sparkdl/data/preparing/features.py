"""What a model is fed with: the raw columns it comes from, and the Spark ML stages in between."""

import json
import keyword
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkdl.data.bad_rows import PROBLEM
from sparkdl.data.card import LABEL_COLUMN
from sparkdl.data.sources.open import known_image_shape
from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import ConfigError, DataError
from sparkdl.program import pickled_by_value
from sparkdl.settings import Prepare, Stage

if TYPE_CHECKING:
    from pyspark.ml import Pipeline, PipelineModel
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

__all__ = [
    "TEXT_STAGES",
    "Inputs",
    "apply_preprocessing",
    "choose_inputs",
    "describe_pipeline",
    "image_fits",
    "width_of",
]

_FEATURES = "features"
TEXT_STAGES = frozenset({"hash_text", "count_text", "hash_words"})
_LOOKED_AT = 100
"""Rows that tell how wide a column is."""
_TOLERATES_MISSING = {"impute", "index"}
"""Stages that give a missing value a meaning."""


@dataclass(frozen=True)
class Inputs:
    """The plan for the inputs of a dataset."""

    kind: str
    """``image``, ``vector`` or ``sparse``."""
    column: str
    """The column of the dataset that the inputs end up in."""
    raw_columns: dict[str, str]
    """The raw columns it is made from, with their Spark types."""
    shape: tuple[int, ...] | None = None
    """Of an image."""
    pipeline: "Pipeline | None" = None
    """What makes the column from the raw ones; without it, the column is a raw one."""
    may_be_missing: frozenset[str] = field(default_factory=frozenset)
    """Raw columns whose nulls and NaNs preprocessing takes care of."""
    may_be_infinite: frozenset[str] = field(default_factory=frozenset)
    """The same of infinite values."""
    widths: dict[str, int] = field(default_factory=dict)
    """Of raw columns of arrays, and of vectors that are assembled."""

    @property
    def source(self) -> str:
        """Where the inputs are before they are written: the column that the pipeline makes, or the only raw one."""
        return self.column if self.pipeline is not None else next(iter(self.raw_columns))


def choose_inputs(rows: "DataFrame", settings: Prepare, pipeline: "Pipeline | None" = None) -> Inputs:
    """Decide which columns of the raw rows become the input, and how. Runs on the driver; reads a hundred rows at most.

    Raises :class:`DataError` for a column that is missing or of a type that cannot be learned from.
    """
    types = {column.name: column.dataType for column in rows.schema}
    image = settings.image
    if image is None and settings.features is None and "image" in types and known_image_shape(rows, "image"):
        image = "image"
    if image is not None:
        require_columns(rows, [image])
        shape = _image_shape(rows, image, settings)
        return Inputs("image", _stored_as(image), {image: types[image].simpleString()}, shape=shape)
    reserved = {*settings.keys, PROBLEM}
    columns = settings.features or [name for name in types if name not in reserved]
    require_columns(rows, columns)
    raw_columns = {name: types[name].simpleString() for name in columns}
    kind = "sparse" if settings.sparse else "vector"
    unit_norm = settings.sparse if settings.unit_norm is None else settings.unit_norm
    if pipeline is not None:
        if settings.stages or settings.unit_norm:
            raise ConfigError("give either `stages` and `unit_norm` or a pipeline, not both")
        every = frozenset(columns)
        return Inputs(kind, _FEATURES, raw_columns, pipeline=pipeline, may_be_missing=every, may_be_infinite=every)
    stored_as_is = not (settings.stages or settings.sparse or unit_norm)
    if len(columns) == 1 and stored_as_is and types[columns[0]].typeName() == "array":
        return Inputs("vector", _stored_as(columns[0]), raw_columns, widths=_widths(rows, columns))
    _check_types({name: types[name] for name in columns}, settings)
    taken = {name.lower() for name in types}  # Spark tells no capitals apart
    output = _FEATURES
    while output in taken:
        output += "_assembled"
    lone_vector = raw_columns == {columns[0]: "vector"} and not settings.stages
    widths = _widths(rows, columns)
    pipeline = _build_pipeline(
        columns, settings.stages, output, unit_norm=unit_norm, widths=None if lone_vector else widths
    )
    return Inputs(
        kind,
        output,
        raw_columns,
        pipeline=pipeline,
        may_be_missing=_first_handled_by(settings.stages, _TOLERATES_MISSING),
        may_be_infinite=_first_handled_by(settings.stages, {"index"}),
        widths=widths,
    )


def _stored_as(name: str) -> str:
    """A raw column's name in a dataset: its own, if Petastorm's rows, which are namedtuples, can have such a field."""
    fits = name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")
    return name if fits and name.lower() != LABEL_COLUMN else _FEATURES


def apply_preprocessing(rows: "DataFrame", model: "PipelineModel", column: str, *, sparse: bool = False) -> "DataFrame":
    """Raw rows with the input column added. Runs on the driver, lazily; the work is Spark's.

    The column is an array of float32; with ``sparse``, what :func:`sparkdl.data.sparse_rows.decode_sparse` reads.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as sf

    with pickled_by_value():
        transformed = model.transform(rows)
    if column not in transformed.columns:
        raise DataError(f"the pipeline makes no column {column!r}; it makes {', '.join(transformed.columns)}")
    if sparse:
        return transformed.withColumn(column, sf.unwrap_udt(sf.col(column)))
    return transformed.withColumn(column, vector_to_array(sf.col(column), "float32"))


def describe_pipeline(pipeline: "Pipeline") -> list[Any]:
    """A pipeline's stages and parameters as JSON, without the random names that Spark gives its stages."""
    stages = pipeline.getStages()
    description = [
        [type(stage).__name__, {param.name: value for param, value in stage.extractParamMap().items()}]
        for stage in stages
    ]
    text = json.dumps(description, sort_keys=True, default=str)
    for index, stage in enumerate(stages):
        text = text.replace(stage.uid, f"stage{index}")
    return list(json.loads(text))


def image_fits(image: "Column", shape: Sequence[int]) -> "Column":
    """Whether Spark's image struct says (height, width, channels); two shapes may have as many bytes."""
    height, width, channels = shape
    return (image["height"] == height) & (image["width"] == width) & (image["nChannels"] == channels)


def require_columns(rows: "DataFrame", columns: Sequence[str]) -> None:
    """Raise :class:`DataError` when columns are missing; lists the ones there are."""
    missing = [name for name in columns if name not in rows.columns]
    if missing:
        nameless = all(re.fullmatch(r"_c\d+", name) for name in rows.columns)
        hint = "; for names in the first line of CSV files, set `source.options: {header: true}`" if nameless else ""
        raise DataError(f"no column {', '.join(map(repr, missing))}; the source has {', '.join(rows.columns)}{hint}")


def _image_shape(rows: "DataFrame", column: str, settings: Prepare) -> tuple[int, ...]:
    kind = rows.schema[column].dataType.typeName()
    if kind not in ("binary", "struct"):
        raise DataError(f"column {column!r} is {kind}; an image is binary (one byte a value) or Spark's image struct")
    if settings.image_shape:
        shape = tuple(settings.image_shape)
    elif kind == "struct":
        from pyspark.sql import functions as sf

        image = sf.col(identifier(column))
        sizes = rows.select(image["height"], image["width"], image["nChannels"]).limit(_LOOKED_AT).collect()
        seen = Counter(tuple(size) for size in sizes if None not in size)
        shape = seen.most_common(1)[0][0] if seen else ()
    else:
        shape = known_image_shape(rows, column) or ()
    if not shape:
        raise DataError(
            f"the size of the images in {column!r} is not known; set `image_shape` to [height, width, channels]"
        )
    return shape if len(shape) == 3 else (*shape, 1)


def width_of(value: "Column", kind: str) -> "Column":
    """How wide a Spark ML vector, sparse or dense, or an array is; null where there is none."""
    from pyspark.sql import functions as sf

    parts = sf.unwrap_udt(value) if kind == "vector" else None
    width = sf.size(value) if parts is None else sf.coalesce(parts["size"], sf.size(parts["values"]))
    return sf.when(value.isNotNull(), width)  # to Spark, a null is of size -1


def _widths(rows: "DataFrame", columns: Sequence[str]) -> dict[str, int]:
    """How wide the vectors and arrays among the columns are in most of the first rows; without rows, no widths."""
    from pyspark.sql import functions as sf

    kinds = {name: rows.schema[name].dataType.simpleString() for name in columns}
    widths = {
        name: width_of(sf.col(identifier(name)), kind)
        for name, kind in kinds.items()
        if kind == "vector" or kind.startswith("array<")
    }
    first = rows.select(*widths.values()).limit(_LOOKED_AT).collect() if widths else []
    seen = {name: Counter(row[place] for row in first if row[place]) for place, name in enumerate(widths)}
    return {name: counts.most_common(1)[0][0] for name, counts in seen.items() if counts}


def _check_types(types: "dict[str, DataType]", settings: Prepare) -> None:
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import BooleanType, NumericType

    made_numeric = _first_handled_by(settings.stages, {"index", *TEXT_STAGES})
    imputed = _first_handled_by(settings.stages, {"impute"})
    for name, kind in types.items():
        if isinstance(kind, NumericType | BooleanType | VectorUDT) or name in made_numeric:
            continue
        if name in imputed:
            raise DataError(
                f"column {name!r} is of type {kind.simpleString()}, and `impute` is for numbers; to leave out rows "
                "without a value, set `on_bad_rows: skip`"
            )
        hint = (
            "give it alone and without `stages`, or turn it into a vector with pyspark.ml.functions.array_to_vector"
            if kind.typeName() == "array"
            else "add a stage (`index` for categories, `hash_text` or `count_text` for text), or leave it out of "
            "`features`"
        )
        if settings.source and settings.source.format == "csv" and not settings.source.options.get("inferSchema"):
            hint += ". Numbers in CSV files are text without `inferSchema: true` in `source.options`"
        raise DataError(f"column {name!r} is of type {kind.simpleString()}, which cannot be learned from: {hint}")


def _first_handled_by(stages: Sequence[Stage], kinds: set[str]) -> frozenset[str]:
    """The columns whose first stage is of one of these kinds."""
    first: dict[str, str] = {}
    for stage in stages:
        for column in stage.columns:
            first.setdefault(column, stage.kind)
    return frozenset(column for column, kind in first.items() if kind in kinds)


def _build_pipeline(
    columns: Sequence[str], stages: Sequence[Stage], output: str, *, unit_norm: bool, widths: dict[str, int] | None
) -> "Pipeline":
    """The configured stages, then one vector of all results; ``widths`` are those of vectors, None of a lone one."""
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import Normalizer, SQLTransformer, VectorAssembler, VectorSizeHint

    current = {column: column for column in columns}
    parts: list[Any] = []
    for number, column in enumerate(columns):
        if {".", "`"} & set(column):  # Spark ML would look for a field; the copy is a stage, so that raw rows do for it
            current[column] = f"{WORKING}{number}"
            parts.append(SQLTransformer(statement=_copy_of(column, current[column])))
    # Assemblers ask for the widths of vectors, which not all sources tell, nor rows that are to be scored.
    parts += [
        VectorSizeHint(inputCol=current[column], size=width, handleInvalid="optimistic")
        for column, width in (widths or {}).items()
    ]
    for number, stage in enumerate(stages):
        unknown = [column for column in stage.columns if column not in current]
        if unknown:
            raise ConfigError(
                f"stages.{number}.columns names {', '.join(map(repr, unknown))}, which `features` does not have "
                f"({', '.join(columns)})"
            )
        inputs = [current[column] for column in stage.columns]
        if len(set(inputs)) < len(inputs):
            raise ConfigError(f"stages.{number}: its columns are one vector already; `standardise` comes last for them")
        shared = [column for column in columns if current[column] in inputs and column not in stage.columns]
        if shared:
            raise ConfigError(f"stages.{number}: {', '.join(shared)} became one vector with its columns; name them all")
        made, outputs = _STAGES[stage.kind](stage, inputs, f"{WORKING}stage{number}")
        parts += made
        current |= dict(zip(stage.columns, outputs, strict=True))
    assembled = f"{WORKING}unscaled" if unit_norm else output
    vectors = list(dict.fromkeys(current.values()))
    if widths is None:  # as it is: sparse ones may be of any width
        parts.append(SQLTransformer(statement=_copy_of(vectors[0], assembled)))
    else:
        parts.append(VectorAssembler(inputCols=vectors, outputCol=assembled, handleInvalid="keep"))
    if unit_norm:
        parts.append(Normalizer(inputCol=assembled, outputCol=output, p=2.0))
    return Pipeline(stages=parts)


def _copy_of(column: str, name: str) -> str:
    """The statement of a stage that gives a column another name."""
    return f"SELECT *, {identifier(column)} AS `{name}` FROM __THIS__"


def _standardise(stage: Stage, inputs: list[str], prefix: str) -> "tuple[list[Any], list[str]]":
    from pyspark.ml.feature import StandardScaler, VectorAssembler

    assembler = VectorAssembler(inputCols=inputs, outputCol=f"{prefix}_assembled", handleInvalid="keep")
    scaler = StandardScaler(inputCol=f"{prefix}_assembled", outputCol=prefix, withMean=True, withStd=True)
    return [assembler, scaler], [prefix] * len(inputs)


def _impute(stage: Stage, inputs: list[str], prefix: str) -> "tuple[list[Any], list[str]]":
    from pyspark.ml.feature import Imputer

    outputs = [f"{prefix}_{index}" for index in range(len(inputs))]
    return [Imputer(inputCols=inputs, outputCols=outputs, strategy=stage.strategy)], outputs


def _index(stage: Stage, inputs: list[str], prefix: str) -> "tuple[list[Any], list[str]]":
    from pyspark.ml.feature import StringIndexer

    outputs = [f"{prefix}_{index}" for index in range(len(inputs))]
    return [StringIndexer(inputCols=inputs, outputCols=outputs, handleInvalid="keep")], outputs


def _text(stage: Stage, inputs: list[str], prefix: str) -> "tuple[list[Any], list[str]]":
    from sparkdl.data.text import text_stages  # which needs pyspark

    return text_stages(stage, inputs, prefix)


_STAGES = {"standardise": _standardise, "impute": _impute, "index": _index} | dict.fromkeys(TEXT_STAGES, _text)
