"""Files that belong to a table of a format with versions. Runs on the driver.

Such a folder keeps files of versions that are past: rows that were deleted or changed are still there for who reads its
files instead of the table.
"""

from collections.abc import Iterator

from sparkdl.errors import DataError, StorageError
from sparkdl.settings import Source
from sparkdl.storage import list_folder

__all__ = ["is_delta_table", "refuse_files_of_tables"]

_FILE_FORMATS = {"avro", "orc", "parquet"}
_DELTA_LOG, _HUDI_LOG, _ICEBERG_LOG = "_delta_log", ".hoodie", ".metadata.json"


def is_delta_table(folder: str) -> bool:
    """Whether a folder holds a Delta table."""
    return any(entry.name == _DELTA_LOG for entry in list_folder(folder))


def refuse_files_of_tables(source: Source) -> None:
    """Raise :class:`DataError` for a source of files that are those of a table of Delta Lake, Iceberg or Hudi."""
    if source.format not in _FILE_FORMATS:
        return
    try:
        found = next(filter(None, map(_table_format, _around(str(source.path)))), None)
    except TimeoutError:  # an outage, which was waited out
        raise
    except (OSError, StorageError):  # of storage that Spark may reach all the same
        return
    if found:
        name, format, path = found
        raise DataError(
            f"{source.path} holds the files of {name} table, also those of rows that were deleted since:"
            f" read the table by `format: {format}` and `path: {path}`, with the package of its format in the"
            " Spark session"
        )


def _around(path: str) -> Iterator[str]:
    """The folder, and those that it may be a part of: partitions (``day=1``), Iceberg's ``data``."""
    folder = path.rstrip("/")
    yield folder
    while "=" in (name := folder.rpartition("/")[2]) or name == "data":
        folder = folder.rpartition("/")[0]
        yield folder


def _table_format(folder: str) -> tuple[str, str, str] | None:
    """What kind of table a folder holds, and what ``source.format`` and ``source.path`` are then."""
    names = {entry.name for entry in list_folder(folder)}
    if _DELTA_LOG in names:
        return "a Delta", "delta", folder
    if _HUDI_LOG in names:
        return "a Hudi", "hudi", folder
    if "metadata" in names and any(_ICEBERG_LOG in entry.name for entry in list_folder(f"{folder}/metadata")):
        return "an Iceberg", "iceberg", "catalog.database.table"
    return None
