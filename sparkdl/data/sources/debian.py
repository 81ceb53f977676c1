"""The packages of a Debian archive, from its index ``Packages`` (format: the manual page deb-control(5))."""

import lzma
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkdl.errors import DataError
from sparkdl.sessions import default_parallelism
from sparkdl.settings import Source
from sparkdl.storage import exists, join, local_path, read_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_debian"]

_FILE = "Packages.xz"
_TEXTS = "package", "section", "maintainer", "tag", "description"
_SCHEMA = pa.schema([*((name, pa.string()) for name in _TEXTS), ("depends", pa.list_(pa.string()))])
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*")


def read_debian(source: Source, spark: "SparkSession") -> "DataFrame":
    """The task "which packages does this one need". Runs on the driver; a task reads the file ``Packages.xz``.

    One row for each package that depends on others: ``package``, ``section``, ``maintainer``, ``tag`` and
    ``description`` are texts, and ``depends`` the names of packages, of alternatives the first. Raises
    :class:`DataError` for a folder without that file, or with a file in another format.
    """
    folder = str(source.path)
    path = join(str(local_path(folder) or folder), _FILE)  # a task's working directory is not the driver's
    if not exists(path):
        raise DataError(f"there is no {path}; `debian` expects a folder with {_FILE}")

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield _read(path)

    columns = ", ".join([*(f"{name} string" for name in _TEXTS), "depends array<string>"])
    return spark.range(1, numPartitions=1).mapInArrow(read, columns).repartition(default_parallelism(spark))


def _read(path: str) -> pa.RecordBatch:
    try:
        text = lzma.decompress(read_file(path)).decode()
        rows = [row for paragraph in text.split("\n\n") if paragraph.strip() and (row := _parse(paragraph))["depends"]]
    except (lzma.LZMAError, ValueError) as error:
        raise DataError(f"{path} is not the index of a Debian archive: {error}; fetch it again") from None
    return pa.RecordBatch.from_pylist(rows, schema=_SCHEMA)


def _parse(paragraph: str) -> dict[str, str | list[str]]:
    """The fields of a package; further lines of a field begin with a space."""
    fields = {}
    for line in paragraph.replace("\n ", " ").splitlines():
        name, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"{line[:40]!r} is no field")
        fields[name.lower()] = value.strip()
    needed = (_NAME.match(one.strip()) for one in fields.get("depends", "").split(","))
    return {name: fields.get(name, "") for name in _TEXTS} | {"depends": sorted({one[0] for one in needed if one})}
