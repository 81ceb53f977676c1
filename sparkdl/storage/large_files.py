"""Writes files that are too large for memory: first to this machine's disk, then to storage. Runs anywhere."""

import hashlib
import io
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from typing_extensions import override

from sparkdl.storage.failures import patient
from sparkdl.storage.files import PARTIAL
from sparkdl.storage.paths import local_path, locate, renames

__all__ = ["writing"]


class NewFile(io.BufferedWriter):
    """A local file that is being written, and whose digest is computed meanwhile."""

    put_as: str
    """The name that it will have on storage."""
    size: int = 0
    """The bytes written so far."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "w"))
        self._digest = hashlib.sha256()
        self.failure: OSError | None = None
        """The error of the last failed write, which a caller's library may have wrapped in another one."""

    @override
    def write(self, content: Any) -> int:
        try:
            written = super().write(content)
        except OSError as error:
            self.failure = error
            raise
        self._digest.update(content)
        self.size += written
        return written

    @property
    def sha256(self) -> str:
        """The digest of what has been written."""
        return self._digest.hexdigest()


@contextmanager
def writing(folder: str) -> Iterator[NewFile]:
    """A local file to write to. When the block ends, it is copied to a folder (path or URI): all of it or nothing.

    The block must set ``put_as`` to the file's name, which may depend on its content. Raises the errors of
    :func:`sparkdl.storage.write_file`.
    """
    local = local_path(folder)
    if local is None:
        with TemporaryDirectory() as scratch:
            written = Path(scratch, "file")
            with _stream_into(written) as file:
                yield file
            _put(f"{folder}/{file.put_as}", written)
        return
    partial = local / f".{uuid.uuid4().hex}{PARTIAL}"
    try:
        local.mkdir(parents=True, exist_ok=True)
        with _stream_into(partial) as file:
            yield file
        partial.replace(local / file.put_as)
    except BaseException:
        with suppress(OSError):  # the first error is the one to report; an unfinished file costs only space
            partial.unlink(missing_ok=True)
        raise


@contextmanager
def _stream_into(path: Path) -> Iterator[NewFile]:
    with NewFile(path) as file:
        try:
            yield file
        except Exception:
            if file.failure:
                raise file.failure from None
            raise


@patient
def _put(path: str, source: Path) -> None:
    filesystem, located = locate(path)
    if not renames(path):
        filesystem.put_file(str(source), located)  # an object only becomes visible when it is complete
        return
    partial = f"{located.rpartition('/')[0]}/.{uuid.uuid4().hex}{PARTIAL}"
    filesystem.makedirs(partial.rpartition("/")[0], exist_ok=True)
    filesystem.put_file(str(source), partial)
    with suppress(FileNotFoundError):
        filesystem.rm(located)  # HDFS does not rename onto a file
    filesystem.mv(partial, located)
