"""Files that are too large to be in memory as a whole: written on this machine first. Runs anywhere."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from sparkdl.storage.failures import patient
from sparkdl.storage.files import PARTIAL
from sparkdl.storage.paths import local_path, locate, renames

__all__ = ["writing"]


@contextmanager
def writing(path: str) -> Iterator[Path]:
    """A file of this machine to write into, which is put at a path or URI when the block ends: whole, or not at all.

    Raises OSError, as :func:`sparkdl.storage.write_file` does.
    """
    local = local_path(path)
    if local is None:
        with TemporaryDirectory() as folder:
            written = Path(folder) / "file"
            yield written
            _put(path, written)
        return
    partial = local.parent / f".{uuid.uuid4().hex}{PARTIAL}"
    try:
        local.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(local)
    except BaseException:
        with suppress(OSError):  # what went wrong is told; what stays there costs only space
            partial.unlink(missing_ok=True)
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
