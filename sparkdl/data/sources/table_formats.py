"""Refuses to read the files of a table whose format has versions. Runs on the driver.

The folder of such a table also contains files of past versions: reading the files instead of the table would return
rows that were deleted or changed.
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
    except TimeoutError:  # storage has not answered, even after retries
        raise
    except (OSError, StorageError):  # Spark may be able to reach this storage nevertheless
        return
    if found:
        name, format, path = found
        raise DataError(
            f"{source.path} holds the files of {name} table, including rows that have been deleted: read the table with"
            f" `format: {format}` and `path: {path}`, and with the package of its format in the Spark session"
        )


def _around(path: str) -> Iterator[str]:
    """The folder, and its parents of which it may be a part: a partition (``day=1``), or Iceberg's ``data``."""
    folder = path.rstrip("/")
    yield folder
    while "=" in (name := folder.rpartition("/")[2]) or name == "data":
        folder = folder.rpartition("/")[0]
        yield folder


def _table_format(folder: str) -> tuple[str, str, str] | None:
    """The kind of table in a folder, with its ``source.format`` and ``source.path``; None if there is no table."""
    names = {entry.name for entry in list_folder(folder)}
    if _DELTA_LOG in names:
        return "a Delta", "delta", folder
    if _HUDI_LOG in names:
        return "a Hudi", "hudi", folder
    if "metadata" in names and any(_ICEBERG_LOG in entry.name for entry in list_folder(f"{folder}/metadata")):
        return "an Iceberg", "iceberg", "catalog.database.table"
    return None
