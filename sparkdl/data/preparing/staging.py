"""All or nothing: a folder is written beside its place and moved there whole, what seals it last."""

import hashlib
import logging
import os
import re
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparkdl.errors import DatasetError, StorageError
from sparkdl.storage import (
    check_writable,
    claim_file,
    exists,
    join,
    list_folder,
    local_path,
    make_folder,
    move_files,
    read_file,
    remove,
    remove_unfinished,
    rename_folder,
    renames,
)

__all__ = ["Staging", "staging"]

_CLAIM = "_preparing"
"""In an output that is being filled file by file: the name of the folder that the files come from."""
_OWNER = re.compile(r"(?P<born>\d+)-(?P<pid>\d+)-[0-9a-f]{8}-(?P<processes>[0-9a-f]{16})")
"""How the name of an unfinished folder ends: which process is writing it. The name and the folder appear at once."""
_REMOVE_SECONDS = 5.0
"""How long tasks that were cancelled may go on writing to a folder that is being removed."""

_log = logging.getLogger(__name__)


class Staging:
    """The temporary folder that is written to."""

    def __init__(self, output: str, *, seal: str) -> None:
        self._output = output.rstrip("/")
        self._seal = seal
        above, slash, self._name = self._output.rpartition("/")
        self._parent = above if slash else "."
        self._prefix = f".{self._name}.preparing-"
        self.path = join(self._parent, self._prefix + _this_process())
        """Spelled the way the user spelled the output, so that Spark understands it, too."""

    def create(self) -> None:
        """Make the folder, after removing what dead processes left behind."""
        try:
            self._remove_abandoned()
            make_folder(self.path)
            self._check_free()
        except OSError as error:
            raise StorageError(
                f"cannot write to {self._output}: {error.strerror or error}. Choose another `output`, or make its "
                "parent folder writable."
            ) from None

    def check(self) -> None:
        """Raise what :meth:`create` would raise, and make nothing."""
        check_writable(self._parent)
        self._check_free()

    def publish(self) -> bool:
        """Move the folder, in which the seal is by now, to its place; False if another process was first.

        On a local file system and on HDFS that is one step. On object stores files move one by one, after one process
        has claimed the place, and the seal comes last.
        """
        if renames(self._output):
            remove_unfinished(self.path)
            return rename_folder(self.path, self._output)
        return self._claim() and self._move()

    def discard(self) -> None:
        """Remove the folder if it is still there."""
        deadline = time.monotonic() + _REMOVE_SECONDS
        while True:
            try:
                return remove(self.path)
            except OSError as error:
                if time.monotonic() > deadline:
                    return _log.warning("cannot remove the unfinished %s: %s", self.path, error)
                time.sleep(0.1)

    def _check_free(self) -> None:
        if self._is_taken():
            raise DatasetError(
                f"{self._output} exists already. Choose another `output`, or remove it if nothing needs it."
            )

    def _is_taken(self) -> bool:
        """Whether there is anything but an empty folder; even that is in the way on HDFS, which would move into it."""
        found = [entry for entry in list_folder(self._parent) if entry.name == self._name]
        hdfs = renames(self._output) and local_path(self._output) is None
        return any(hdfs or not entry.is_folder for entry in found) or bool(list_folder(self._output))

    def _claim(self) -> bool:
        """Whether the place is this process's alone from here on."""
        claim = join(self._output, _CLAIM)
        if not claim_file(claim, self.path.rpartition("/")[2].encode()):
            return False
        if [entry.name for entry in list_folder(self._output)] == [_CLAIM]:
            return True
        remove(claim)  # somebody else has published since, and taken the claim away
        return False

    def _move(self) -> bool:
        try:
            names = [entry.name for entry in list_folder(self.path)]
            for name in [*(name for name in names if name != self._seal), self._seal]:
                move_files(join(self.path, name), join(self._output, name))
        except BaseException:
            self._remove(self._output)  # ours alone, by the claim
            raise
        remove(join(self._output, _CLAIM))
        return True

    def _remove_abandoned(self) -> None:
        for entry in list_folder(self._parent):
            # Somebody else may be cleaning up too, or a task that nobody told to end may still be writing there.
            with suppress(OSError):
                folder, owner = join(self._parent, entry.name), _OWNER.fullmatch(self._owner(entry.name))
                if owner and owner["processes"] != _known_processes():
                    _log.warning(
                        "%s is unfinished; it is kept, because a process of another machine or container may be writing"
                        " it. Remove it if none does",
                        folder,
                    )
                elif owner and owner["born"] != _born(owner["pid"]):
                    self._remove(folder)

    def _remove(self, folder: str) -> None:
        """Remove a folder, and last what tells whose it is: this process may be killed too."""
        for entry in list_folder(folder):
            if entry.name != _CLAIM:
                remove(join(folder, entry.name))
        remove(folder)

    def _owner(self, name: str) -> str:
        """Which process is filling a folder, as its name or its claim tells; empty if it is none of ours."""
        if name == self._name and not exists(join(self._output, self._seal)):
            name = read_file(join(self._output, _CLAIM)).decode(errors="replace")
        return name.removeprefix(self._prefix) if name.startswith(self._prefix) else ""


@contextmanager
def staging(output: str, *, seal: str) -> Iterator[Staging]:
    """A folder to write to, removed again unless it is published. Runs on the driver.

    ``seal`` is the file that makes such a folder whole. Before anything else happens, raises :class:`StorageError` when
    ``output`` cannot be written, and :class:`DatasetError` when it is something else.
    """
    folder = Staging(output, seal=seal)
    try:
        folder.create()
        yield folder
    finally:
        folder.discard()


def _this_process() -> str:
    return f"{_born('self')}-{os.getpid()}-{uuid.uuid4().hex[:8]}-{_known_processes()}"


def _born(pid: str) -> str | None:
    """When a process began, in ticks since the machine did: numbers of processes are reused. None if there is none.

    See proc_pid_stat(5). A time of day would change when somebody sets the clock.
    """
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return None


def _known_processes() -> str:
    """The processes that this one can ask for: those of its machine, since it booted, and of its container.

    Hostnames do not tell: containers, and machines of different networks, may have equal ones.
    """
    namespace = Path("/proc/self/ns/pid").readlink()
    booted = Path("/proc/sys/kernel/random/boot_id").read_text()
    return hashlib.sha256(f"{socket.gethostname()} {booted} {namespace}".encode()).hexdigest()[:16]
