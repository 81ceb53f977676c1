"""All or nothing: a folder is written beside its place and moved there whole, what seals it last."""

import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EEXIST, EISDIR, ENOTDIR, ENOTEMPTY
from pathlib import Path

import psutil

from sparkdl.errors import DatasetError
from sparkdl.storage import PARTIAL, is_local, join, locate

__all__ = ["Staging", "staging"]

_CLAIM = "_preparing"
"""In an output that is being filled file by file: the name of the folder that the files come from."""
_OWNER = re.compile(r"(?P<started>\d+)-(?P<born>\d+)-(?P<pid>\d+)-[0-9a-f]{8}-(?P<host>.+)")
"""How the name of an unfinished folder ends: which process is writing it. The name and the folder appear at once."""
_FORGOTTEN_SECONDS = 24 * 3600
"""An unfinished folder of another machine is taken for abandoned after a day: its process cannot be asked."""
_BIRTH_TOLERANCE = 2
"""Seconds between two ways to round when a process began."""
_REMOVE_SECONDS = 5.0
"""How long tasks that were cancelled may go on writing to a folder that is being removed."""

_log = logging.getLogger(__name__)


class Staging:
    """The temporary folder that is written to."""

    def __init__(self, output: str, *, seal: str) -> None:
        self._filesystem, self._output = locate(output)
        parent, _, self._name = self._output.rpartition("/")
        self._seal = seal
        self._prefix = f".{self._name}.preparing-"
        self._folder = f"{parent}/{self._prefix}{_this_process()}"
        # The same place, spelled the way the user spelled the output, so that Spark understands it too.
        above, slash, _ = output.rstrip("/").rpartition("/")
        self.path = join(above if slash else ".", self._folder.rpartition("/")[2])

    def create(self) -> None:
        """Make the folder, after removing what dead processes left behind."""
        try:
            self._remove_abandoned()
            self._filesystem.makedirs(self._folder)
        except OSError as error:
            raise DatasetError(
                f"cannot write to {self._output}: {error.strerror or error}. Choose another `output`, or make its "
                "parent folder writable."
            ) from None
        if self._is_taken():
            raise DatasetError(
                f"{self._output} exists already. Choose another `output`, or remove it if nothing needs it."
            )

    def publish(self) -> bool:
        """Move the folder, in which the seal is by now, to its place; False if another process was first.

        On a local file system that is one step. Elsewhere files move one by one, after one process has claimed the
        place, and the seal comes last.
        """
        if is_local(self._filesystem):
            for unfinished in Path(self._folder).rglob(f".*{PARTIAL}"):  # of tasks that were killed
                unfinished.unlink(missing_ok=True)
            return self._rename()
        return self._claim() and self._move()

    def discard(self) -> None:
        """Remove the folder if it is still there."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        while self._filesystem.exists(self._folder):
            try:
                self._filesystem.rm(self._folder, recursive=True)
            except OSError as error:
                if time.monotonic() > deadline:
                    _log.warning("cannot remove the unfinished %s: %s", self._folder, error)
                    return
                time.sleep(0.1)

    def _is_taken(self) -> bool:
        """Whether there is anything but an empty folder."""
        if self._filesystem.isdir(self._output):
            return bool(self._filesystem.ls(self._output, detail=False))
        return bool(self._filesystem.exists(self._output))

    def _rename(self) -> bool:
        try:
            Path(self._folder).rename(self._output)  # never onto a folder that holds anything, nor into one
        except OSError as error:
            if error.errno in (EEXIST, ENOTEMPTY, ENOTDIR, EISDIR):
                return False
            raise
        return True

    def _claim(self) -> bool:
        if self._is_taken():
            return False
        self._filesystem.makedirs(self._output, exist_ok=True)
        owner = self._folder.rpartition("/")[2].encode()
        try:
            # Object stores decide by themselves who was first (on S3: If-None-Match).
            self._filesystem.pipe_file(join(self._output, _CLAIM), owner, mode="create")
        except FileExistsError:
            return False
        return True

    def _move(self) -> bool:
        names = [path.rstrip("/").rpartition("/")[2] for path in self._filesystem.ls(self._folder, detail=False)]
        try:
            for name in [*(name for name in names if name != self._seal), self._seal]:
                self._filesystem.mv(join(self._folder, name), join(self._output, name), recursive=True)
        except BaseException:
            self._remove(self._output)  # ours alone, by the claim
            raise
        self._filesystem.rm_file(join(self._output, _CLAIM))
        return True

    def _remove_abandoned(self) -> None:
        parent = self._output.rpartition("/")[0]
        siblings = self._filesystem.ls(parent, detail=False) if self._filesystem.isdir(parent) else []
        for folder in (path.rstrip("/") for path in siblings):
            # Somebody else may be cleaning up too, or a task that nobody told to end may still be writing there.
            with suppress(OSError):
                if _abandoned(self._owner(folder)):
                    self._remove(folder)

    def _remove(self, folder: str) -> None:
        """Remove a folder, and last what tells whose it is: this process may be killed too."""
        for path in self._filesystem.ls(folder, detail=False):
            if path.rpartition("/")[2] != _CLAIM:
                self._filesystem.rm(path, recursive=True)
        self._filesystem.rm(folder, recursive=True)

    def _owner(self, folder: str) -> str:
        """Which process is filling this folder, as its name or its claim tells; empty if it is none of ours."""
        name = folder.rpartition("/")[2]
        if name == self._name and not self._filesystem.exists(join(folder, self._seal)):
            name = self._filesystem.cat_file(join(folder, _CLAIM)).decode(errors="replace")
        return name.removeprefix(self._prefix) if name.startswith(self._prefix) else ""


@contextmanager
def staging(output: str, *, seal: str) -> Iterator[Staging]:
    """A folder to write to, removed again unless it is published. Runs on the driver.

    ``seal`` is the file that makes such a folder whole. Raises :class:`DatasetError` before anything else happens when
    ``output`` cannot be written or is something else.
    """
    folder = Staging(output, seal=seal)
    try:
        folder.create()
        yield folder
    finally:
        folder.discard()


def _this_process() -> str:
    born = round(psutil.Process().create_time())
    return f"{round(time.time())}-{born}-{os.getpid()}-{uuid.uuid4().hex[:8]}-{_host()}"


def _host() -> str:
    return re.sub(r"[^\w.-]", "_", socket.gethostname())


def _abandoned(owner: str) -> bool:
    match = _OWNER.fullmatch(owner)
    if match is None:
        return False
    if match["host"] != _host():
        return time.time() - int(match["started"]) > _FORGOTTEN_SECONDS
    try:
        # Process numbers are reused; the time of birth tells the owner from a stranger.
        return bool(abs(psutil.Process(int(match["pid"])).create_time() - int(match["born"])) > _BIRTH_TOLERANCE)
    except psutil.NoSuchProcess:
        return True
