"""The packages of a Debian archive, from its indices (format: the manual pages deb-control(5) and dsc(5))."""

import lzma
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from sparkdl.errors import DataError
from sparkdl.sessions import default_parallelism
from sparkdl.settings import Source
from sparkdl.storage import exists, join, local_path, read_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_debian"]


class _Index(NamedTuple):
    texts: tuple[str, ...]
    """The fields that describe a package."""
    label: str
    """The column of the packages that it needs."""
    needs: tuple[str, ...]
    """The fields that name these packages."""

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*((name, pa.string()) for name in self.texts), (self.label, pa.list_(pa.string()))])


_INDICES = {
    "Packages.xz": _Index(("package", "section", "maintainer", "tag", "description"), "depends", ("depends",)),
    "Sources.xz": _Index(
        ("package", "section", "maintainer", "uploaders", "binary", "homepage"),
        "build_depends",
        ("build-depends", "build-depends-arch", "build-depends-indep"),
    ),
}
"""The indices of binary packages, and of the source packages from which they are built."""
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*")


def read_debian(source: Source, spark: "SparkSession") -> "DataFrame":
    """The task "which packages does this one need". Runs on the driver; a Spark task reads the folder's index.

    There is one row for each package that needs others. With ``Packages.xz``, the texts are ``package``, ``section``,
    ``maintainer``, ``tag`` and ``description``, and ``depends`` lists the packages that are needed to run it. With
    ``Sources.xz``, the texts are ``package``, ``section``, ``maintainer``, ``uploaders``, ``binary`` and ``homepage``,
    and ``build_depends`` lists the packages that are needed to build it. Of alternatives, only the first is listed.
    Raises :class:`DataError` unless the folder has exactly one of these files, in the right format.
    """
    folder = str(source.path)
    folder = str(local_path(folder) or folder)  # absolute, because tasks have another working directory
    found = [name for name in _INDICES if exists(join(folder, name))]
    if len(found) != 1:
        problem = (
            f"there is no {' or '.join(_INDICES)} in {folder}" if not found else f"{folder} has {' and '.join(found)}"
        )
        raise DataError(f"{problem}; `debian` expects a folder with one of them")
    (name,) = found
    path, index = join(folder, name), _INDICES[name]

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield _read(path, index)

    columns = ", ".join([*(f"{name} string" for name in index.texts), f"{index.label} array<string>"])
    return spark.range(1, numPartitions=1).mapInArrow(read, columns).repartition(default_parallelism(spark))


def _read(path: str, index: _Index) -> pa.RecordBatch:
    try:
        text = lzma.decompress(read_file(path)).decode()
        rows = [_parse(paragraph, index) for paragraph in text.split("\n\n") if paragraph.strip()]
    except (lzma.LZMAError, ValueError) as error:
        raise DataError(f"{path} is not the index of a Debian archive: {error}; fetch it again") from None
    return pa.RecordBatch.from_pylist([row for row in rows if row[index.label]], schema=index.schema)


def _parse(paragraph: str, index: _Index) -> dict[str, str | list[str]]:
    """The texts of a package, and the packages that it needs. Continuation lines of a field begin with a space."""
    fields = {}
    for line in paragraph.replace("\n ", " ").splitlines():
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"{line[:40]!r} is not a field")
        fields[name.lower()] = value.strip()
    needed = (_NAME.match(one.strip()) for field in index.needs for one in fields.get(field, "").split(","))
    return {name: fields.get(name, "") for name in index.texts} | {
        index.label: sorted({one[0] for one in needed if one})
    }
