"""What a teacher answers to the training rows of a dataset: one more column, in files of its own.

There is a file for each row group, with the rows in the same order, so that a rank that reads some rows of a row group
reads theirs here. The format is safetensors: float16 of shape (rows, classes), and the CRC-32 of these numbers.
"""

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sparkdl.errors import DatasetError
from sparkdl.storage import exists, join, read_file, write_file

__all__ = ["TeacherAnswers"]

_COMPLETE = "complete"
_LARGEST = np.finfo(np.float16).max


@dataclass(frozen=True)
class TeacherAnswers:
    """The folder of a teacher's answers to the training split of one dataset. Cheap to pickle."""

    folder: str
    classes: int

    @property
    def are_complete(self) -> bool:
        """Whether there is a file for each row group: whoever has seen to that says so."""
        return exists(join(self.folder, _COMPLETE))

    def complete(self) -> None:
        """Say that there is a file for each row group."""
        write_file(join(self.folder, _COMPLETE), b"")

    def has(self, group: int) -> bool:
        """Whether there is the file of a row group."""
        return exists(self._path(group))

    def write(self, group: int, logits: NDArray[np.float32]) -> None:
        """Keep the answers to a row group's rows, (rows, classes), in the file's order. What float16 has not is cut."""
        kept = np.ascontiguousarray(np.clip(logits, -_LARGEST, _LARGEST), dtype=np.float16)
        crc32 = np.array([zlib.crc32(kept.data)], np.uint32)
        write_file(self._path(group), save({"logits": kept, "crc32": crc32}))

    def read(self, group: int, rows: slice) -> NDArray[np.float16]:
        """Some rows of a row group: (rows, classes). Runs on a rank.

        Raises :class:`DatasetError` that names the file when it is missing or is not the one that was written.
        """
        path = self._path(group)
        again = f"Remove {self.folder} and start again: the teacher then answers anew."
        try:
            found: dict[str, NDArray[Any]] = load(read_file(path))
            logits = found["logits"]
            whole = found["crc32"].tolist() == [zlib.crc32(logits.data)]
        except FileNotFoundError:
            raise DatasetError(f"{path} is missing. {again}") from None
        except (SafetensorError, KeyError, ValueError):
            whole = False
        if not whole or logits.dtype != np.float16 or logits.shape[1:] != (self.classes,):
            raise DatasetError(f"{path} was altered. {again}")
        return logits[rows]

    def _path(self, group: int) -> str:
        return join(self.folder, f"part-{group:06d}.safetensors")
