"""Finds raw columns by name: columns, fields of structs (``address.lat``), and values of maps by their keys.

In a name, dots separate a column, its fields and theirs. A column whose own name contains dots takes precedence:
``address.lat`` is the column of that name if there is one.
"""

import difflib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sparkdl.data.sql import identifier
from sparkdl.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = [
    "RawColumn",
    "find_column",
    "frame_column",
    "listed",
    "require_columns",
    "same_name",
    "select_columns",
    "with_neighbours",
]

_SHOWN_COLUMNS = 50
"""The most columns that an error lists."""


class RawColumn(NamedTuple):
    """Where the values of a raw column are."""

    place: int
    """The position of the column that is or contains it, as two columns may have the same name."""
    path: tuple[str, ...]
    """That column's name, and the fields and keys that lead to the values."""
    kind: "DataType"
    """The type of the values."""

    def of(self, numbered: "DataFrame") -> "Column":
        """The values, from rows whose columns are named by their positions."""
        value = numbered[f"`{self.place}`"]
        for part in self.path[1:]:
            value = value[part]
        return value


def find_column(schema: "StructType", name: str) -> RawColumn | None:
    """The column, field or value of this name, or None. Raises :class:`DataError` if two columns have the name."""
    return _find_column(schema, _places(schema), name)


def _places(schema: "StructType") -> dict[str, list[int]]:
    """The positions of the columns of each name."""
    places: dict[str, list[int]] = defaultdict(list)
    for place, column in enumerate(schema.fields):
        places[column.name].append(place)
    return dict(places)


def _find_column(schema: "StructType", by_name: Mapping[str, list[int]], name: str) -> RawColumn | None:
    for column, rest in _ways(name):
        places = by_name.get(column, [])
        found = _below(schema.fields[places[0]].dataType, rest) if places else None
        if found is None:
            continue
        if len(places) > 1:
            raise DataError(
                f"the rows have {len(places)} columns of the name {column!r}, as after a join; rename or drop all but"
                " one of them"
            )
        path, kind = found
        return RawColumn(places[0], (column, *path), kind)
    return None


def select_columns(rows: "DataFrame", names: Iterable[str], *, row: str | None = None) -> "DataFrame":
    """Only these columns, with these names. Runs on the driver, lazily.

    With ``row``, a struct of that name comes first, with all columns of the rows, named by their positions.

    Raises :class:`DataError` for a name that the rows do not have, or have twice, or that Spark takes for another one.
    """
    from pyspark.sql import functions as sf

    found = require_columns(rows, names)
    same = same_name(rows.sparkSession)
    counts = Counter(map(same, rows.columns))
    if row is None and all(len(each.path) == 1 and counts[same(name)] == 1 for name, each in found.items()):
        return rows.select(*map(identifier, found))
    numbered = rows.toDF(*map(str, range(len(rows.columns))))
    whole = [] if row is None else [sf.struct("*").alias(row)]
    return numbered.select(*whole, *[each.of(numbered).alias(name) for name, each in found.items()])


def require_columns(rows: "DataFrame", names: Iterable[str]) -> dict[str, RawColumn]:
    """Where the columns of these names are. Runs on the driver; reads only the schema.

    Raises :class:`DataError` for a name that the rows do not have, or have twice, or that Spark cannot tell from
    another one.
    """
    schema = rows.schema
    by_name = _places(schema)
    found = {name: _find_column(schema, by_name, name) for name in names}
    if missing := [name for name, each in found.items() if each is None]:
        raise DataError(
            f"no column {with_neighbours(missing, schema)}; the source has {listed(rows.columns)}{_nameless(rows)}"
        )
    same = same_name(rows.sparkSession)
    counts = Counter(map(same, found))
    if twins := [name for name in found if counts[same(name)] > 1]:
        raise DataError(
            f"the columns {', '.join(map(repr, twins))} differ only in upper and lower case, which Spark ignores;"
            " rename or leave out all but one of them, or set `spark.sql.caseSensitive: true`"
        )
    return {name: each for name, each in found.items() if each}


def with_neighbours(missing: Iterable[str], schema: "StructType") -> str:
    """Names of missing columns for an error, each with a similar name that may have been meant."""
    known = list(_names(schema))
    said = []
    for name in missing:
        near = difflib.get_close_matches(name, known, n=1)
        said.append(f"{name!r} (did you mean {near[0]!r}?)" if near else repr(name))
    return ", ".join(said)


def listed(names: Sequence[str]) -> str:
    """The existing columns for an error, or the first ones if there are very many."""
    more = f", ... ({len(names):,} in all)" if len(names) > _SHOWN_COLUMNS else ""
    return f"{', '.join(names[:_SHOWN_COLUMNS])}{more}"


def _names(schema: "StructType", above: str = "") -> Iterator[str]:
    """The names of all columns and of their fields."""
    from pyspark.sql.types import StructType

    for field in schema.fields:
        yield f"{above}{field.name}"
        if isinstance(field.dataType, StructType):
            yield from _names(field.dataType, f"{above}{field.name}.")


def _nameless(rows: "DataFrame") -> str:
    """A hint if the columns have the default names of Spark's reader of CSV files."""
    nameless = all(re.fullmatch(r"_c\d+", name) for name in rows.columns)
    return "; for names in the first line of CSV files, set `source.options: {header: true}`" if nameless else ""


def same_name(spark: "SparkSession") -> Callable[[str], str]:
    """A function that maps names to the same text if this session treats them as equal."""
    case_sensitive = str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true"
    return str if case_sensitive else str.lower


def _ways(name: str) -> Iterator[tuple[str, str | None]]:
    """A name split at each dot into a column and the rest; the whole name, without a rest, comes first."""
    yield name, None
    for place in range(len(name) - 1, -1, -1):
        if name[place] == ".":
            yield name[:place], name[place + 1 :]


def _below(kind: "DataType", rest: str | None) -> "tuple[tuple[str, ...], DataType] | None":
    """The fields and keys that the rest of a name means, and the type of the value there."""
    from pyspark.sql.types import MapType, StringType, StructType

    if rest is None:
        return (), kind
    if isinstance(kind, StructType):
        parts = [(part, kind[part].dataType, deeper) for part, deeper in _ways(rest) if part in kind.names]
    elif isinstance(kind, MapType) and isinstance(kind.keyType, StringType):  # the shortest key, if more is below it
        parts = [(part, kind.valueType, deeper) for part, deeper in reversed([*_ways(rest)])]
    else:
        return None
    for part, inner, deeper in parts:
        if found := _below(inner, deeper):
            return (part, *found[0]), found[1]
    return None


def frame_column(frame: "pd.DataFrame", name: str, path: Iterable[str]) -> "pd.Series[Any] | None":
    """A column of pandas rows, or the values at a path in it, as structs and maps are dictionaries there."""
    if name in frame:
        return frame[name]
    column, *below = path or (name,)
    if column not in frame:
        return None

    def inside(value: Any) -> Any:
        for part in below:
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    return frame[column].map(inside)
