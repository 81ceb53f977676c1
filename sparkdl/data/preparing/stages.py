"""The stages that raw columns go through, one after another, until they are one vector."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, NamedTuple

from sparkdl.data.preparing.text_stages import text_stages
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import ConfigError, DataError
from sparkdl.preprocessing.assembling import Assemble, ExpectWidth
from sparkdl.preprocessing.calendar_parts import CalendarParts
from sparkdl.preprocessing.categories import HashCategories, LearnIndex
from sparkdl.preprocessing.copying import Copy
from sparkdl.preprocessing.learner import Learner
from sparkdl.preprocessing.numbers import LearnMeans, LearnMedians, LearnModes
from sparkdl.preprocessing.scaling import LearnScale, Normalize
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.unfitted_pipeline import UnfittedPipeline
from sparkdl.settings import Prepare, Stage
from sparkdl.settings.explain import nearest

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

__all__ = ["KINDS", "TEXT_STAGES", "build_pipeline", "check_types", "first_handled_by", "is_list_of_numbers"]

TEXT_STAGES = frozenset({"hash_text", "count_text", "hash_words"})
_NUMBERS, _TRUTH, _TEXT, _TIME, _VECTOR = "numbers", "truth values", "text", "dates", "vectors"
"""What a column holds, as far as stages are concerned."""
_LEARNED_FROM = _NUMBERS, _TRUTH, _VECTOR

Made = tuple[list[FittedStage | Learner], list[tuple[str, ...]]]
"""What a stage of the settings consists of, and the columns that each of its inputs has become."""


def check_types(types: "Mapping[str, DataType]", settings: Prepare) -> None:
    """Raise :class:`DataError` for a column that a stage does not take, or that no stage makes numbers of."""
    holds = {name: _holds(kind) for name, kind in types.items()}
    for stage in settings.stages:
        for name in filter(holds.__contains__, stage.columns):
            if holds[name] not in KINDS[stage.kind].takes:
                raise DataError(_misfit(name, types[name], holds[name], stage, settings))
            holds[name] = KINDS[stage.kind].makes
    for name, kind in types.items():
        if holds[name] not in _LEARNED_FROM:
            raise DataError(
                f"column {name!r} is of type {kind.simpleString()}, which cannot be learned from: "
                f"{_remedy(name, kind, settings)}"
            )


def first_handled_by(stages: Sequence[Stage], kinds: set[str]) -> frozenset[str]:
    """The columns whose first stage is of one of these kinds; what ``date`` makes of a missing value is missing."""
    first: dict[str, str] = {}
    for stage in stages:
        if stage.kind != "date":
            first = dict.fromkeys(stage.columns, stage.kind) | first
    return frozenset(column for column, kind in first.items() if kind in kinds)


def is_list_of_numbers(kind: "DataType") -> bool:
    """Whether a type is that of arrays of numbers."""
    from pyspark.sql.types import ArrayType, BooleanType, NumericType

    return isinstance(kind, ArrayType) and isinstance(kind.elementType, NumericType | BooleanType)


def build_pipeline(
    types: "Mapping[str, DataType]",
    stages: Sequence[Stage],
    output: str,
    *,
    unit_norm: bool,
    widths: Mapping[str, int] | None,
    prefix: str = f"{WORKING}stage",
    exact: bool = False,
) -> UnfittedPipeline:
    """The stages for columns of these types, then one vector of all results, in float32 unless it is to be ``exact``.

    ``widths`` are those of vectors; None where a lone column of vectors is the result. ``prefix`` is what the names of
    the stages' own columns begin with.
    """
    current: dict[str, tuple[str, ...]] = {column: (column,) for column in types}
    holds = {column: _holds(kind) for column, kind in types.items()}
    # Vectors are told apart by their widths, which not all sources tell, nor rows that are to be scored.
    parts: list[FittedStage | Learner] = [ExpectWidth(column, width) for column, width in (widths or {}).items()]
    for number, stage in enumerate(stages):
        _check_columns(number, stage, current)
        begin = f"{prefix}{number}"
        for place, column in enumerate(stage.columns):
            if cast := _cast(stage, holds[column], types[column]):
                name = f"{begin}_{place}_cast"
                parts.append(Copy(current[column], name, cast=cast))
                current[column] = (name,)
            holds[column] = KINDS[stage.kind].makes
        inputs = {one: column for column in stage.columns for one in current[column]}
        made, outputs = KINDS[stage.kind].fit(stage, inputs, begin)
        parts += made
        results = iter(outputs)
        for column in stage.columns:
            found = [one for _ in current[column] for one in next(results)]
            current[column] = tuple(dict.fromkeys(found))
    assembled = f"{WORKING}unscaled" if unit_norm else output
    vectors = tuple(dict.fromkeys(one for columns in current.values() for one in columns))
    if widths is None:  # as it is: sparse ones may be of any width
        parts.append(Copy(vectors, assembled))
    else:
        parts.append(Assemble(vectors, assembled, "float64" if unit_norm or exact else "float32"))
    if unit_norm:
        parts.append(Normalize(assembled, output))
    return UnfittedPipeline(tuple(parts), output)


def _holds(kind: "DataType") -> str:
    """What a column of this type holds; for one that nothing is made of, its type."""
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql.types import BooleanType, DateType, NumericType, StringType, TimestampNTZType, TimestampType

    if isinstance(kind, VectorUDT) or is_list_of_numbers(kind):
        return _VECTOR
    known = {NumericType: _NUMBERS, BooleanType: _TRUTH, StringType: _TEXT}
    known |= dict.fromkeys((DateType, TimestampType, TimestampNTZType), _TIME)
    return next((what for each, what in known.items() if isinstance(kind, each)), kind.simpleString())


def _misfit(name: str, kind: "DataType", holds: str, stage: Stage, settings: Prepare) -> str:
    """Why a stage does not take a column."""
    *others, last = KINDS[stage.kind].takes
    wanted = f"{', '.join(others)} and {last}" if others else last
    if stage.kind == "impute" and holds == _TEXT:
        hint = "; to leave out rows without a value, set `on_bad_rows: skip`"
    elif stage.kind == "date" and holds == _TEXT:
        hint = "; read it as one (`inferSchema: true` in `source.options` of CSV files), or cast it"
    elif holds == _VECTOR != _holds(kind):
        hint = f"; the stages before have made a vector of it, so put `{stage.kind}` before them"
    elif holds == kind.simpleString():
        hint = f"; {_remedy(name, kind, settings)}"
    else:
        hint = ""
    return f"column {name!r} is of type {kind.simpleString()}, and `{stage.kind}` is for {wanted}{hint}"


def _remedy(name: str, kind: "DataType", settings: Prepare) -> str:
    """What to do about a column that cannot be learned from."""
    from pyspark.sql.types import ArrayType, MapType, NullType, StructType

    if isinstance(kind, StructType) and kind.names:
        return f"name its fields in `features`, such as '{name}.{kind.names[0]}'"
    if isinstance(kind, MapType):
        return f"name its keys in `features`, such as '{name}.key'"
    if isinstance(kind, NullType):
        return "it is null in all rows; leave it out of `features`"
    if isinstance(kind, ArrayType):
        return "its elements must be numbers; leave it out of `features`, or turn it into an array of numbers"
    if _holds(kind) == _TIME:
        return "add the stage `date` for its parts (`index` for categories), or leave it out of `features`"
    hint = (
        "add a stage (`index` for categories, `hash_text` or `count_text` for text), or leave it out of `features`"
        if _holds(kind) == _TEXT
        else "turn it into numbers, or leave it out of `features`"
    )
    if settings.source and settings.source.format == "csv" and not settings.source.options.get("inferSchema"):
        hint += ". Numbers in CSV files are text without `inferSchema: true` in `source.options`"
    return hint


def _check_columns(number: int, stage: Stage, current: Mapping[str, tuple[str, ...]]) -> None:
    """Raise :class:`ConfigError` for a stage whose columns are not there, or are parts of a vector already."""
    unknown = [column for column in stage.columns if column not in current]
    if unknown:
        raise ConfigError(
            f"stages.{number}.columns names {', '.join(map(repr, unknown))}, which `features` does not have; "
            f"{nearest(unknown[0], current)}"
        )
    inputs = [one for column in stage.columns for one in current[column]]
    if len(set(stage.columns)) < len(stage.columns):
        raise ConfigError(f"stages.{number}.columns names a column twice")
    if len(set(inputs)) < len(inputs):
        raise ConfigError(f"stages.{number}: its columns are one vector already; `standardise` comes last for them")
    shared = [column for column, made in current.items() if set(made) & set(inputs) and column not in stage.columns]
    if shared:
        raise ConfigError(f"stages.{number}: {', '.join(shared)} became one vector with its columns; name them all")


def _cast(stage: Stage, holds: str, kind: "DataType") -> str | None:
    """The type that a stage takes a column as; None where it takes the column itself.

    Nothing depends on the time zone of the session: times that lie on no calendar become microseconds of UTC.
    """
    from pyspark.sql.types import TimestampType

    if stage.kind == "impute" and holds == _TRUTH:
        return "double"
    if stage.kind in ("index", "hash") and holds in (_TRUTH, _TIME):
        return "bigint" if isinstance(kind, TimestampType) else "string"
    return None


def _numbered(inputs: Collection[str], prefix: str) -> list[str]:
    return [f"{prefix}_{index}" for index in range(len(inputs))]


def _each(outputs: Iterable[str]) -> list[tuple[str, ...]]:
    return [(output,) for output in outputs]


# Each is given its inputs, and for each of these the raw column that it was made of.
def _standardise(stage: Stage, inputs: Mapping[str, str], prefix: str) -> Made:
    assembled = f"{prefix}_assembled"
    return [Assemble(tuple(inputs), assembled), LearnScale(assembled, prefix)], [(prefix,)] * len(inputs)


def _impute(stage: Stage, inputs: Mapping[str, str], prefix: str) -> Made:
    outputs = _numbered(inputs, prefix)
    kinds = {"mean": LearnMeans, "median": LearnMedians, "mode": LearnModes}
    return [kinds[stage.strategy](tuple(inputs), tuple(outputs), tuple(inputs.values()))], _each(outputs)


def _index(stage: Stage, inputs: Mapping[str, str], prefix: str) -> Made:
    outputs = _numbered(inputs, prefix)
    return [LearnIndex(tuple(inputs), tuple(outputs))], _each(outputs)


def _hash(stage: Stage, inputs: Mapping[str, str], prefix: str) -> Made:
    outputs = _numbered(inputs, prefix)
    return [HashCategories(tuple(inputs), tuple(outputs), stage.vocabulary)], _each(outputs)


def _date(stage: Stage, inputs: Mapping[str, str], prefix: str) -> Made:
    outputs = [tuple(f"{each}_{part}" for part in stage.parts) for each in _numbered(inputs, prefix)]
    since = (stage.since - date(1970, 1, 1)).days
    made = [
        CalendarParts(column, columns, tuple(stage.parts), since)
        for column, columns in zip(inputs, outputs, strict=True)
    ]
    return list(made), outputs


def _text(stage: Stage, inputs: Mapping[str, str], prefix: str) -> Made:
    outputs = _numbered(inputs, prefix)
    made = [part for column, output in zip(inputs, outputs, strict=True) for part in text_stages(stage, column, output)]
    return made, _each(outputs)


class StageKind(NamedTuple):
    """A kind of stage."""

    takes: tuple[str, ...]
    """What columns hold that it is for."""
    makes: str
    """What it leaves in their place."""
    fit: Callable[[Stage, Mapping[str, str], str], Made]
    """From its settings, its columns and a prefix for new ones: what is to be fitted, and the columns that it makes."""


KINDS = {
    "standardise": StageKind((_NUMBERS, _TRUTH, _VECTOR), _VECTOR, _standardise),
    "impute": StageKind((_NUMBERS, _TRUTH), _NUMBERS, _impute),
    "index": StageKind((_NUMBERS, _TRUTH, _TEXT, _TIME), _NUMBERS, _index),
    "hash": StageKind((_NUMBERS, _TRUTH, _TEXT, _TIME), _NUMBERS, _hash),
    "date": StageKind((_TIME,), _NUMBERS, _date),
} | dict.fromkeys(sorted(TEXT_STAGES), StageKind((_TEXT,), _VECTOR, _text))
"""The kinds of stages that settings name (:class:`sparkdl.settings.Stage`)."""
