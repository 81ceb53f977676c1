"""What a stream's checkpoint belongs to: one source and one output. Runs on the driver.

Spark keeps in that folder which rows have been scored. Beside its files lies one of ours, which says of which source,
with which columns, and where the predictions are.
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
"""Spark's folder with a file for each part of a stream that is written."""
_USER_TYPE = '"udt"'
"""Of a column whose type is a class, in Spark's JSON."""


@dataclass(frozen=True)
class StreamCheckpoint:
    """The record in a checkpoint's folder."""

    folder: str
    source: dict[str, Any]
    output: dict[str, Any]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    """By this name tables remember what has been written to them."""
    columns: str | None = None
    """Those of files, as Spark's JSON."""
    is_new: bool = True

    @classmethod
    def of(cls, settings: Score, source: Source) -> "StreamCheckpoint":
        """The one that the settings name, or a new one, which is not written yet.

        Raises :class:`ConfigError` for a folder that is no checkpoint, or that of another source or output, and
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
                f"score.checkpoint: {folder} is not empty, and no checkpoint of sparkdl's; choose a new folder"
            )
        try:
            record = json.loads(read_file(join(folder, _NAME)))
            there = cls(folder, record["source"], record["output"], record["id"], record["columns"], is_new=False)
            if there.columns is not None and (_USER_TYPE in there.columns or not isinstance(there.columns, str)):
                raise ValueError("a column has a type that is a class")
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{join(folder, _NAME)} is damaged ({error}); {_start_again(folder)}") from None
        for name, is_for, asked in (
            ("source", there.source, wanted.source),
            ("output", there.output, wanted.output),
        ):
            if is_for != asked:
                raise ConfigError(
                    f"score.checkpoint: {folder} belongs to the {name} {_in_words(is_for)}, and this stream has"
                    f" {_in_words(asked)}; choose a new folder for it"
                )
        return there

    @property
    def has_commits(self) -> bool:
        """Whether something has been written by it."""
        return any(entry.name.isdecimal() for entry in list_folder(join(self.folder, _COMMITS)))

    @property
    def schema(self) -> "StructType | None":
        """The columns of files, where they are known."""
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
        """Raise :class:`DatasetError` where predictions would be there twice, or not at all."""
        if self.is_new and is_there and mode == "error":
            raise DatasetError(
                f"there is {self.output['place']} already, and the checkpoint {self.folder} is new: set `mode` to"
                " `append` or `merge` to add to it, or choose another `output`"
            )
        if not is_there and self.has_commits:
            raise DatasetError(
                f"{self.output['place']} is gone, to which the checkpoint {self.folder} says that rows were written;"
                f" {_start_again(self.folder)}"
            )

    def save(self, columns: "StructType | None") -> None:
        """Write the record of a new one."""
        known = columns.json() if columns else None
        record = {
            "source": self.source,
            "output": self.output,
            "id": self.id,
            "columns": None if known and _USER_TYPE in known else known,
        }
        write_file(join(self.folder, _NAME), json.dumps(record, indent=1).encode())


def _start_again(folder: str) -> str:
    return f"to score all rows again, remove {folder} and what is left of the output"


def _in_words(part: dict[str, Any]) -> str:
    changes = " (its changes)" if part.get("changes") else ""
    return f"{part.get('format')} {part.get('place', part.get('path'))}{changes}"
