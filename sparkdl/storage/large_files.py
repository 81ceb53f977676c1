"""Files that are too large to be in memory as a whole: written on this machine first. Runs anywhere."""

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
    """A file that is being written, of which the digest is found on the way."""

    put_as: str
    """What it will be called."""
    size: int = 0
    """Bytes so far."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "w"))
        self._digest = hashlib.sha256()
        self.failure: OSError | None = None
        """What storage did not take: who writes may make another error of it."""

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
    """A file of this machine to write into, which is put in a folder (path or URI) when the block ends: whole, or not.

    By then ``put_as`` has to be its name, which may depend on what was written. Raises OSError, as
    :func:`sparkdl.storage.write_file` does.
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
        with suppress(OSError):  # what went wrong is told; what stays there costs only space
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
        filesystem.put_file(str(source), located)  # an object is there once all of it is
        return
    partial = f"{located.rpartition('/')[0]}/.{uuid.uuid4().hex}{PARTIAL}"
    filesystem.makedirs(partial.rpartition("/")[0], exist_ok=True)
    filesystem.put_file(str(source), partial)
    with suppress(FileNotFoundError):
        filesystem.rm(located)  # HDFS does not rename onto a file
    filesystem.mv(partial, located)
