"""Plans the inputs of a dataset: the raw columns from which they are made, and how."""

import keyword
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from sparkdl.data.bad_rows import PROBLEM, named
from sparkdl.data.card import LABEL_COLUMN, WEIGHT_COLUMN
from sparkdl.data.preparing.stages import build_pipeline, check_types, first_handled_by, is_list_of_numbers
from sparkdl.data.raw_columns import find_column, require_columns, select_columns
from sparkdl.data.sources.open import known_image_shape
from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import ConfigError, DataError
from sparkdl.preprocessing import UnfittedPipeline
from sparkdl.preprocessing.input_rows import InputForm
from sparkdl.settings import Prepare

if TYPE_CHECKING:
    from pyspark.ml import Pipeline
    from pyspark.sql import Column, DataFrame

__all__ = [
    "INPUTS",
    "InputPlan",
    "NamedPart",
    "check_number",
    "choose_inputs",
    "image_fits",
    "raw_rows",
    "width_of",
]

INPUTS = f"{WORKING}inputs"
"""The working column of named inputs: a struct with a field per input."""
_FEATURES = "features"
_COLUMNS_PER_GIB = 1000
"""The number of columns, with two stages, whose plan fits into one GiB of the driver's memory; 3,000 did not."""
_LOOKED_AT = 100
"""The number of rows from which the width of a column is determined."""
_TOLERATES_MISSING = {"impute", "index", "hash"}
"""The stages that accept missing values."""


@dataclass(frozen=True)
class InputPlan:
    """The plan for the inputs of a dataset."""

    kind: str
    """``image``, ``vector`` or ``sparse``."""
    column: str
    """The dataset's column of inputs."""
    raw_columns: dict[str, str]
    """The raw columns from which it is made, with their Spark types; ``vector`` for arrays that become parts of one."""
    shape: tuple[int, ...] | None = None
    """The shape of an image."""
    stages: UnfittedPipeline | None = None
    """The stages that make the column; without ``stages`` and ``pipeline``, it is a raw column."""
    pipeline: "Pipeline | None" = None
    """The user's own pipeline of pyspark.ml that makes the column."""
    may_be_missing: frozenset[str] = field(default_factory=frozenset)
    """The raw columns whose nulls and NaNs preprocessing handles."""
    may_be_infinite: frozenset[str] = field(default_factory=frozenset)
    """The raw columns whose infinite values preprocessing handles."""
    widths: dict[str, int] = field(default_factory=dict)
    """The widths of raw columns of arrays, and of vectors that are assembled."""
    assembles: bool = False
    """Whether the stages only concatenate the raw columns, so that nothing has to be fitted."""
    fields: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For raw columns that are fields of structs, or values of maps: the column and the path below it."""
    knows_pixels: bool = False
    """Whether the source guarantees that images are raw pixels."""
    parts: "dict[str, NamedPart]" = field(default_factory=dict)
    """Named inputs by name; ``raw_columns`` and ``stages`` are then those of all inputs together."""

    @property
    def source(self) -> str:
        """The column of the inputs before they are written: the result of stages, or the only raw column."""
        return self.column if self.preprocessed else next(iter(self.raw_columns))

    @property
    def staged_columns(self) -> dict[str, str]:
        """The raw columns that stages read: all except images, which are only decoded."""
        images = {column for part in self.parts.values() if part.plan.shape for column in part.plan.raw_columns}
        return {name: kind for name, kind in self.raw_columns.items() if name not in images}

    @property
    def preprocessed(self) -> bool:
        """Whether the inputs are made from raw columns."""
        return self.stages is not None or self.pipeline is not None


class NamedPart(NamedTuple):
    """One input of several."""

    plan: InputPlan
    made_in: str
    """The column that its stages make; for images, the raw column."""
    form: InputForm
    may_be: tuple[str, ...]
    """The problems that the result of stages can have; see :class:`~sparkdl.preprocessing.input_rows.MadeInput`."""


def choose_inputs(
    rows: "DataFrame",
    settings: Prepare,
    pipeline: "Pipeline | None" = None,
    *,
    output: str | None = None,
    prefix: str = f"{WORKING}stage",
    exact: bool = False,
) -> InputPlan:
    """Decide which raw columns become the input, and how. Runs on the driver; reads at most a hundred rows.

    If there are other inputs, ``output`` is the column of the result, and ``prefix`` the prefix of the columns of
    stages; with ``exact``, the result is float64.
    Raises :class:`DataError` for a column that is missing or of a type that cannot be learned from.
    """
    image = settings.image
    if image is None and settings.features is None and "image" in rows.columns and known_image_shape(rows, "image"):
        image = "image"
    if image is None and pipeline is None:
        image = _lone_image(rows, settings)
    reserved = {*settings.keys, PROBLEM}
    require_columns(rows, settings.keys)
    columns = [image] if image else settings.features or [name for name in rows.columns if name not in reserved]
    found = require_columns(rows, columns)
    types = {name: each.kind for name, each in found.items()}
    raw_columns = {name: kind.simpleString() for name, kind in types.items()}
    fields = {name: each.path for name, each in found.items() if len(each.path) > 1}
    if image:
        chosen = select_columns(rows, columns)
        shape = _image_shape(chosen, image, settings)
        made = types[image].typeName() == "struct" or known_image_shape(chosen, image) is not None
        return InputPlan("image", _stored_as(image), raw_columns, shape=shape, fields=fields, knows_pixels=made)
    kind = "sparse" if settings.sparse else "vector"
    unit_norm = settings.sparse if settings.unit_norm is None else settings.unit_norm
    if pipeline is not None:
        if settings.stages or settings.unit_norm:
            raise ConfigError("give either `stages` and `unit_norm` or a pipeline, not both")
        every = frozenset(columns)
        return InputPlan(
            kind,
            _FEATURES,
            raw_columns,
            pipeline=pipeline,
            may_be_missing=every,
            may_be_infinite=every,
            fields=fields,
        )
    check_types(types, settings)
    widths = _widths(rows, raw_columns)
    lists = [name for name, kind in types.items() if is_list_of_numbers(kind)]
    stored_as_is = output is None and not (settings.stages or settings.sparse or unit_norm)
    if stored_as_is and lists == columns and len(columns) == 1:
        return InputPlan("vector", _stored_as(columns[0]), raw_columns, widths=widths, fields=fields)
    raw_columns |= dict.fromkeys(lists, "vector")
    taken = {name.lower() for name in (*rows.columns, *columns)}  # Spark ignores case
    lone_vector = list(raw_columns.values()) == ["vector"] and not settings.stages and (output is None or not widths)
    column = output or _FEATURES
    while column in taken:
        column += "_assembled"
    stages = build_pipeline(
        types,
        settings.stages,
        column,
        unit_norm=unit_norm,
        widths=None if lone_vector else widths,
        prefix=prefix,
        exact=exact,
    )
    return InputPlan(
        kind,
        column,
        raw_columns,
        stages=stages,
        may_be_missing=first_handled_by(settings.stages, _TOLERATES_MISSING),
        may_be_infinite=first_handled_by(settings.stages, {"index", "hash"}),
        widths=widths,
        assembles=not (settings.stages or settings.sparse or unit_norm),
        fields=fields,
    )


def _lone_image(rows: "DataFrame", settings: Prepare) -> str | None:
    """The single feature, if it is binary, which only images are, and there are no stages for it."""
    names = settings.features or []
    if len(names) != 1 or settings.stages or settings.sparse or settings.unit_norm or settings.qid:
        return None
    found = find_column(rows.schema, names[0])
    return names[0] if found and found.kind.typeName() == "binary" else None


def check_number(rows: "DataFrame", columns: Sequence[str]) -> None:
    """Raise :class:`DataError` for more columns than fit into the driver's memory: the JVM would crash."""
    memory = str(rows.sparkSession.conf.get("spark.driver.memory", "1g"))
    found = re.fullmatch(r"(\d+)([kmgt]?)b?", memory.strip().lower())
    mebibytes = int(found[1]) * {"k": 2**-10, "": 1, "m": 1, "g": 2**10, "t": 2**20}[found[2]] if found else 2**10
    limit = int(_COLUMNS_PER_GIB * mebibytes / 2**10)
    if len(columns) > limit:
        raise DataError(
            f"there are {len(columns):,} columns to learn from, but Spark's plan of more than {limit:,} may not fit"
            f" into the {memory} of the driver; let tasks read them directly (`prepare.source` with the format"
            " `parquet`), combine numbers that belong together in one column of arrays, or set `spark.driver.memory` to"
            " more"
        )


def raw_rows(rows: "DataFrame", inputs: InputPlan, settings: Prepare, *, row: str | None = None) -> "DataFrame":
    """The columns from which a dataset is made, and nothing else. Runs on the driver, lazily.

    Arrays that become parts of a vector are vectors in the result. ``row`` is the same as in :func:`select_columns`,
    whose errors this raises. Without ``row``, the last column has the values by which errors name a row.
    """
    wanted = [*inputs.raw_columns, *settings.keys, *([PROBLEM] if PROBLEM in rows.columns else [])]
    if row is None:
        names = Counter(name.lower() for name in [*rows.columns, *{*wanted} - {*rows.columns}])
        alone = [name for name in rows.columns if names[name.lower()] == 1]
        shown = dict.fromkeys([*alone, *wanted])
        whole = select_columns(rows, shown)
        chosen = whole.select(*map(identifier, dict.fromkeys(wanted)), named(whole.select(*map(identifier, shown))))
    else:
        chosen = select_columns(rows, wanted, row=row)
    kinds = {column.name: column.dataType for column in chosen.schema}
    lists = [name for name, kind in inputs.raw_columns.items() if kind == "vector" and is_list_of_numbers(kinds[name])]
    return chosen.withColumns({name: _as_vector(name) for name in lists}) if lists else chosen


def _as_vector(name: str) -> "Column":
    """A column of arrays as vectors, in which null elements become NaN."""
    from pyspark.ml.functions import array_to_vector
    from pyspark.sql import functions as sf

    elements = sf.col(identifier(name)).cast("array<double>")
    return array_to_vector(sf.transform(elements, lambda one: sf.coalesce(one, sf.lit(float("nan")))))


def _stored_as(name: str) -> str:
    """The name of a raw column in a dataset: its own, if it is valid in a namedtuple, which Petastorm uses for rows."""
    fits = name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")
    return name if fits and name.lower() not in (LABEL_COLUMN, WEIGHT_COLUMN) else _FEATURES


def image_fits(image: "Column", shape: Sequence[int]) -> "Column":
    """Whether Spark's image struct has this shape: two shapes may have the same number of bytes."""
    height, width, channels = shape
    return (image["height"] == height) & (image["width"] == width) & (image["nChannels"] == channels)


def _image_shape(rows: "DataFrame", column: str, settings: Prepare) -> tuple[int, ...]:
    kind = rows.schema[column].dataType.typeName()
    if kind not in ("binary", "struct"):
        raise DataError(
            f"column {column!r} is {kind}; images must be binary (the bytes of a file, or one byte per value) or"
            " Spark's image struct"
        )
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
            f"the size of the images in {column!r} is not known; set `image_shape` to [height, width, channels]: raw"
            " ones must have it, and encoded ones (JPEG, PNG, WebP, GIF, BMP, TIFF) are resized to it"
        )
    return shape if len(shape) == 3 else (*shape, 1)


def width_of(value: "Column", kind: str) -> "Column":
    """The width of a Spark ML vector, sparse or dense, or of an array; null for null."""
    from pyspark.sql import functions as sf

    parts = sf.unwrap_udt(value) if kind == "vector" else None
    width = sf.size(value) if parts is None else sf.coalesce(parts["size"], sf.size(parts["values"]))
    return sf.when(value.isNotNull(), width)  # Spark's size of null is -1


def _widths(rows: "DataFrame", kinds: Mapping[str, str]) -> dict[str, int]:
    """The most frequent widths of columns of vectors and arrays in the first rows; empty without rows."""
    from pyspark.sql import functions as sf

    lists = [name for name, kind in kinds.items() if kind == "vector" or kind.startswith("array<")]
    if not lists:
        return {}
    widths = {name: width_of(sf.col(identifier(name)), kinds[name]) for name in lists}
    first = select_columns(rows, lists).select(*widths.values()).limit(_LOOKED_AT).collect()
    seen = {name: Counter(row[place] for row in first if row[place]) for place, name in enumerate(widths)}
    return {name: counts.most_common(1)[0][0] for name, counts in seen.items() if counts}
