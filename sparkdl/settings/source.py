"""Where raw rows come from: a part of the sections ``prepare`` and ``score``."""

import re
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, model_validator

from sparkdl.settings.section import Section, absolute

__all__ = ["FILE_FORMATS", "OWN_FORMATS", "TABLE_FORMATS", "FormatName", "Source"]

OWN_FORMATS = frozenset({"debian", "dictionary", "idx", "images", "wordnet", "xc"})
"""Which sparkdl reads by itself."""
FILE_FORMATS = frozenset(
    {"avro", "binaryFile", "csv", "delta", "hudi", "image", "json", "libsvm", "orc", "parquet", "text", "xml"}
)
"""Which Spark reads from files or folders, some of them by a package of its own."""
TABLE_FORMATS = frozenset({"iceberg", "table"})
"""Whose rows are in a table that has a name."""
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_BY_LOWER = {name.lower(): name for name in OWN_FORMATS | FILE_FORMATS | TABLE_FORMATS}


def _known(name: str) -> str:
    """A known format as it is spelled, in whatever case it is written, as Spark takes it."""
    if not _NAME.fullmatch(name):
        raise ValueError("this must be the name of a format that Spark knows, such as parquet")
    return _BY_LOWER.get(name.lower(), name)


FormatName = Annotated[str, AfterValidator(_known)]


class Source(Section):
    """Where raw rows come from."""

    format: FormatName
    """Any that Spark reads: ``parquet``, ``csv``, ``json``, ``orc``, ``libsvm``, ``text``; ``binaryFile``, which gives
    files whole, as ``content`` beside their ``path``; ``table``, which reads the catalog; with their packages in the
    Spark session ``avro``, ``delta``, ``iceberg``, ``jdbc``, ``mongodb`` and others. And those of sparkdl: ``idx``, the
    format of MNIST; ``images``, a folder with a sub-folder per class; ``xc``, the format of the Extreme Classification
    Repository; ``wordnet``, the folder with its ``data.*`` files; ``debian``, a folder with an archive's
    ``Packages.xz`` or ``Sources.xz``; ``dictionary``, one with a dictionary of dictd's. A file may not name formats of
    which nobody knows what they load (:mod:`sparkdl.settings.file_options`)."""
    path: str | dict[str, str] | None = None
    """A file, a folder, a glob or a URI that Spark can read; for ``table`` and ``iceberg`` the table's name. ``xc`` and
    ``images`` also take a path for each split, ``{train: ..., test: ...}``; ``jdbc`` and its like take none."""
    options: dict[str, str | int | float | bool] = {}
    """Passed to Spark's reader, for example ``header: true`` for csv; ``images`` takes ``height`` and ``width``. Of a
    Delta table ``versionAsOf`` or ``timestampAsOf`` picks a version, and ``readChangeFeed: true`` reads its changes.
    Settings of Hadoop, which have a dot in their names, are not for a file."""

    @property
    def brings_splits(self) -> bool:
        """Whether the rows have a column ``split`` that says for what each of them is."""
        return self.format == "dictionary" or isinstance(self.path, dict)

    @property
    def place(self) -> str:
        """Where the rows are, in words: the path, or the format if there is no path."""
        return self.format if self.path is None else str(self.path)

    @property
    def reads_changes(self) -> bool:
        """Whether the rows are the changes of a Delta table: what was inserted, updated and deleted."""
        options = {name.lower(): str(value).lower() for name, value in self.options.items()}
        return "true" in (options.get("readchangefeed"), options.get("readchangedata"))

    @property
    def is_of_files(self) -> bool:
        """Whether the path is one of files or folders, and no name of a table."""
        return self.format in OWN_FORMATS | FILE_FORMATS

    @model_validator(mode="before")
    @classmethod
    def _paths_are_the_drivers(cls, values: Any) -> Any:
        """Relative paths of files made absolute: an executor's working directory is not the driver's."""
        path = values.get("path") if isinstance(values, dict) else None
        if path is None or _BY_LOWER.get(str(values.get("format")).lower()) not in OWN_FORMATS | FILE_FORMATS:
            return values
        if isinstance(path, dict):
            return {**values, "path": {split: _absolute(each) for split, each in path.items()}}
        return {**values, "path": _absolute(path)}

    @model_validator(mode="after")
    def _has_a_path(self) -> Self:
        if isinstance(self.path, dict) and (self.format not in ("images", "xc") or not self.path):
            raise ValueError("a path for each split is for the formats `images` and `xc`, and names at least one split")
        if self.path is None and (self.is_of_files or self.format == "table"):
            raise ValueError(f"`path` is missing: {self.format} is read from somewhere")
        return self


def _absolute(path: Any) -> Any:
    return absolute(str(path)) if isinstance(path, str | Path) else path
