"""The logits of a teacher for the training rows of a dataset: an additional column, in separate files.

There is a file for each row group, with the rows in the same order, so that a rank reads the same rows of both. The
format is safetensors: float16 of shape (rows, classes), and the CRC-32 of these numbers. For a teacher with very many
classes, only the most likely classes of each row are stored, as float16 and int32 of shape (rows, kept).
"""

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sparkdl.errors import DatasetError
from sparkdl.storage import exists, join, read_file, write_file

if TYPE_CHECKING:
    import torch

__all__ = ["TeacherAnswers"]

_COMPLETE = "complete"
_LARGEST = np.finfo(np.float16).max
_KEPT = np.dtype([("class", np.int32), ("logit", np.float16)])
"""One of the most likely classes, and its logit."""


@dataclass(frozen=True)
class TeacherAnswers:
    """The folder of a teacher's logits for the training split of one dataset. Cheap to pickle."""

    folder: str
    classes: int
    """The number of logits per row; 1 for regression."""
    kept: int | None = None
    """The number of most likely classes whose logits are stored; None: all classes."""

    def room(self, rows: int) -> NDArray[Any]:
        """Memory for the logits of so many rows, in the format of :meth:`read`."""
        return np.empty((rows, self.kept or self.classes), _KEPT if self.kept else np.float16)

    def to_tensor(self, answers: NDArray[Any]) -> "torch.Tensor":
        """The logits for the loss: float16 of shape (n, classes), with the smallest number for classes not stored."""
        import torch  # imported here, because preparing rows does not need it

        if self.kept is None:
            return torch.from_numpy(answers)
        whole = torch.full((len(answers), self.classes), -float(_LARGEST), dtype=torch.float16)
        classes = torch.from_numpy(np.ascontiguousarray(answers["class"]))
        whole.scatter_(1, classes.long(), torch.from_numpy(np.ascontiguousarray(answers["logit"])))
        return whole

    @property
    def are_complete(self) -> bool:
        """Whether :meth:`complete` was called: there is a file for each row group."""
        return exists(join(self.folder, _COMPLETE))

    def complete(self) -> None:
        """Record that there is a file for each row group."""
        write_file(join(self.folder, _COMPLETE), b"")

    def has(self, group: int) -> bool:
        """Whether the file of a row group exists."""
        return exists(self._path(group))

    def write(self, group: int, logits: NDArray[np.float32], classes: NDArray[np.int64] | None = None) -> None:
        """Store the logits of a row group's rows, in the file's order: (rows, classes), or of some ``classes`` per row.

        Values beyond the range of float16 are clipped.
        """
        tensors: dict[str, NDArray[Any]] = {"logits": _as_kept(logits)}
        if classes is not None:
            tensors["classes"] = np.ascontiguousarray(classes, dtype=np.int32)
        write_file(self._path(group), save({**tensors, "crc32": np.array([_checksum(tensors)], np.uint32)}))

    def read(self, group: int, rows: slice) -> NDArray[Any]:
        """The logits of some rows of a row group, in the format of :meth:`room`. Runs on a rank.

        Raises :class:`DatasetError`, with the file's name, if it is missing or was altered.
        """
        path = self._path(group)
        again = f"Remove {self.folder} and start again: the teacher's logits are then computed again."
        try:
            found: dict[str, NDArray[Any]] = load(read_file(path))
            whole = found.pop("crc32").tolist() == [_checksum(found)] and self._fit(**found)
        except FileNotFoundError:
            raise DatasetError(f"{path} is missing. {again}") from None
        except (SafetensorError, KeyError, ValueError, TypeError):
            whole = False
        if not whole:
            raise DatasetError(f"{path} was altered. {again}")
        if self.kept is None:
            return found["logits"][rows]
        read = self.room(len(found["logits"]))
        read["class"], read["logit"] = found["classes"], found["logits"]
        return read[rows]

    def _fit(self, logits: NDArray[Any], classes: NDArray[Any] | None = None) -> bool:
        """Whether these tensors have the right types and shapes. Raises TypeError for other objects."""
        if logits.dtype != np.float16 or logits.shape[1:] != (self.kept or self.classes,):
            return False
        if classes is None or self.kept is None:
            return classes is None and self.kept is None
        known = not classes.size or bool(0 <= classes.min() <= classes.max() < self.classes)
        return known and classes.dtype == np.int32 and classes.shape == logits.shape

    def _path(self, group: int) -> str:
        return join(self.folder, f"part-{group:06d}.safetensors")


def _as_kept(logits: NDArray[np.float32]) -> NDArray[np.float16]:
    return np.ascontiguousarray(np.clip(logits, -_LARGEST, _LARGEST), dtype=np.float16)


def _checksum(tensors: dict[str, NDArray[Any]]) -> int:
    """CRC-32 of the bytes of all tensors, in the order of their names."""
    found = 0
    for name in sorted(tensors):
        found = zlib.crc32(np.ascontiguousarray(tensors[name]).data, found)
    return found
