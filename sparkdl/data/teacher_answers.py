"""What a teacher answers to the training rows of a dataset: one more column, in files of its own.

There is a file for each row group, with the rows in the same order, so that a rank that reads some rows of a row group
reads theirs here. The format is safetensors: float16 of shape (rows, classes), and the CRC-32 of these numbers. Of a
teacher of very many classes only the likeliest of each row are kept, float16 and int32 of shape (rows, kept).
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
"""One of the likeliest classes."""


@dataclass(frozen=True)
class TeacherAnswers:
    """The folder of a teacher's answers to the training split of one dataset. Cheap to pickle."""

    folder: str
    classes: int
    """How many numbers it answers for a row: one where that is a number itself."""
    kept: int | None = None
    """How many of the classes, the likeliest, its answers are of; None: of all."""

    def room(self, rows: int) -> NDArray[Any]:
        """Memory for the answers to so many rows, as :meth:`read` gives them."""
        return np.empty((rows, self.kept or self.classes), _KEPT if self.kept else np.float16)

    def to_tensor(self, answers: NDArray[Any]) -> "torch.Tensor":
        """Answers as a loss takes them: float16 of shape (n, classes), the least there is of classes not kept."""
        import torch  # which who prepares rows need not load

        if self.kept is None:
            return torch.from_numpy(answers)
        whole = torch.full((len(answers), self.classes), -float(_LARGEST), dtype=torch.float16)
        classes = torch.from_numpy(np.ascontiguousarray(answers["class"]))
        whole.scatter_(1, classes.long(), torch.from_numpy(np.ascontiguousarray(answers["logit"])))
        return whole

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

    def write(self, group: int, logits: NDArray[np.float32], classes: NDArray[np.int64] | None = None) -> None:
        """Keep the answers to a row group's rows, in the file's order, (rows, classes) or of some ``classes`` each.

        What float16 has not is cut.
        """
        tensors: dict[str, NDArray[Any]] = {"logits": _as_kept(logits)}
        if classes is not None:
            tensors["classes"] = np.ascontiguousarray(classes, dtype=np.int32)
        write_file(self._path(group), save({**tensors, "crc32": np.array([_checksum(tensors)], np.uint32)}))

    def read(self, group: int, rows: slice) -> NDArray[Any]:
        """Some rows of a row group, in the memory of :meth:`room`. Runs on a rank.

        Raises :class:`DatasetError` that names the file when it is missing or is not the one that was written.
        """
        path = self._path(group)
        again = f"Remove {self.folder} and start again: the teacher then answers anew."
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
        """Whether these are answers of this kind. Raises TypeError for other tensors."""
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
    """Of the bytes of all tensors, in the order of their names."""
    found = 0
    for name in sorted(tensors):
        found = zlib.crc32(np.ascontiguousarray(tensors[name]).data, found)
    return found
