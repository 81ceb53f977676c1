"""The record of the source and the output to which a stream's checkpoint belongs. Runs on the driver.

In the checkpoint's folder, Spark keeps track of the rows that have been scored. Beside Spark's files, ``sparkdl.json``
records the source, its columns, and the output.
"""

import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkdl.errors import CheckpointError, ConfigError, DatasetError
from sparkdl.settings import Score, Source
from sparkdl.storage import join, list_folder, read_file, write_file

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["StreamCheckpoint"]

_NAME = "sparkdl.json"
_COMMITS = "commits"
"""Spark's folder with a file for each micro-batch that has been written."""
_USER_TYPE = '"udt"'
"""Marks a column of a user-defined type in Spark's JSON."""


@dataclass(frozen=True)
class StreamCheckpoint:
    """The record in a checkpoint's folder."""

    folder: str
    source: dict[str, Any]
    output: dict[str, Any]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """The name under which a table records which micro-batches have been written to it."""
    columns: str | None = None
    """The columns of a source of files, as Spark's JSON."""
    is_new: bool = True
    """Whether the record has not been written yet."""

    @classmethod
    def of(cls, settings: Score, source: Source) -> "StreamCheckpoint":
        """The record in the settings' checkpoint folder, or, if the folder is empty, a new one that is not written yet.

        Raises :class:`ConfigError` for a folder that is not a checkpoint, or one of another source or output, and
        :class:`~sparkdl.errors.CheckpointError` for a record that cannot be read.
        """
        folder = str(settings.checkpoint)
        wanted = cls(
            folder,
            {"format": source.format, "path": source.path, "changes": source.reads_changes},
            {"format": settings.format, "place": settings.output},
        )
        found = {entry.name for entry in list_folder(folder)}
        if not found:
            return wanted
        if _NAME not in found:
            raise ConfigError(
                f"score.checkpoint: {folder} is neither empty nor a checkpoint of sparkdl's; choose a new folder"
            )
        try:
            record = json.loads(read_file(join(folder, _NAME)))
            there = cls(folder, record["source"], record["output"], record["id"], record["columns"], is_new=False)
            if there.columns is not None and (_USER_TYPE in there.columns or not isinstance(there.columns, str)):
                raise ValueError("a column has a user-defined type")
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{join(folder, _NAME)} is damaged ({error}); {_start_again(folder)}") from None
        for name, is_for, asked in (
            ("source", there.source, wanted.source),
            ("output", there.output, wanted.output),
        ):
            if is_for != asked:
                raise ConfigError(
                    f"score.checkpoint: {folder} belongs to the {name} {_in_words(is_for)}, but this stream has"
                    f" {_in_words(asked)}; choose a new folder"
                )
        return there

    @property
    def has_commits(self) -> bool:
        """Whether at least one micro-batch has been written."""
        return any(entry.name.isdecimal() for entry in list_folder(join(self.folder, _COMMITS)))

    @property
    def schema(self) -> "StructType | None":
        """The columns of a source of files; None if they are not recorded."""
        if self.columns is None:
            return None
        from pyspark.sql.types import StructType

        try:
            return StructType.fromJson(json.loads(self.columns))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{join(self.folder, _NAME)} is damaged ({error}); {_start_again(self.folder)}"
            ) from None

    def check_output(self, *, is_there: bool, mode: str) -> None:
        """Raise :class:`DatasetError` if predictions would be written twice, or some not at all."""
        if self.is_new and is_there and mode == "error":
            raise DatasetError(
                f"{self.output['place']} already exists, but the checkpoint {self.folder} is new: set `mode` to"
                " `append` or `merge` to add to it, or choose another `output`"
            )
        if not is_there and self.has_commits:
            raise DatasetError(
                f"{self.output['place']} no longer exists, but according to the checkpoint {self.folder} rows were"
                f" written to it; {_start_again(self.folder)}"
            )

    def save(self, columns: "StructType | None") -> None:
        """Write the record of a new checkpoint."""
        known = columns.json() if columns else None
        record = {
            "source": self.source,
            "output": self.output,
            "id": self.id,
            "columns": None if known and _USER_TYPE in known else known,
        }
        write_file(join(self.folder, _NAME), json.dumps(record, indent=1).encode())


def _start_again(folder: str) -> str:
    return f"to score all rows again, remove {folder} and the rest of the output"


def _in_words(part: dict[str, Any]) -> str:
    changes = " (its changes)" if part.get("changes") else ""
    return f"{part.get('format')} {part.get('place', part.get('path'))}{changes}"
