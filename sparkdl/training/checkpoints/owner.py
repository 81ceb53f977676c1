"""The driver that owns a run: only the owner writes to its folder, resumes its checkpoints and registers its model.

The owner has a file in the run's folder and changes it every few seconds. Another driver that wants the run watches
that file by its own clock: while the file changes, the owner is alive, even if the clocks of the two machines differ.
Each owner's file has a number, one more than that of the owner before, and is created only if it does not exist: if two
drivers want the run of a dead one, only one gets it. An owner that was considered dead finds the higher number and
stops.
"""

import json
import logging
import os
import re
import socket
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

from sparkdl.errors import CheckpointError, ConfigError, TrainingError
from sparkdl.storage import claim_file, join, list_folder, make_folder, read_file, remove, write_file

__all__ = ["Owner"]

log = logging.getLogger(__name__)

RENEW_SECONDS = 3.0
DEAD_SECONDS = 20.0  # without a change; several renewals, so that one late renewal does not lose the run
WATCH_SECONDS = 0.5  # between two reads of another owner's file
RELEASE_SECONDS = 5.0  # how long a driver's end waits for storage that does not answer
NAME = re.compile(r"owner-(\d{6})\.json")


class Owner:
    """A driver as the owner of at most one run. Created with the folder of a run to resume, if there is one.

    Entering and :meth:`claim` raise :class:`~sparkdl.errors.ConfigError` while another driver has the run, and
    :class:`~sparkdl.errors.CheckpointError` when the file cannot be written or read.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._number = 0
        self._content: dict[str, Any] = {"host": socket.gethostname(), "process": os.getpid(), "changed": uuid4().hex}
        self._closing = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="sparkdl-owner", daemon=True)
        self._successor = ""

    def __enter__(self) -> Self:
        if self._folder:
            self.claim(self._folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the run, so that others need not wait until this owner is considered dead."""
        if self._number:
            self._closing.set()
            self._renewal.join(RELEASE_SECONDS)

    def claim(self, folder: str, *, wait: bool = False) -> None:
        """Own a run's folder, which is created if needed; ``wait``: until no other driver owns it."""
        level = logging.INFO
        try:
            make_folder(folder)
            while not self._took(folder, level):
                if not wait:
                    raise _taken(folder)
                level = logging.DEBUG  # the owner has been logged before
        except OSError as error:
            raise CheckpointError(
                f"cannot write to {folder}: {error.strerror or error}; set train.run_dir to another place"
            ) from None
        self._renewal.start()

    def check(self) -> None:
        """Raise :class:`~sparkdl.errors.TrainingError` when another driver has taken over the run."""
        if self._successor:
            raise TrainingError(
                f"{self._successor} has taken over the run in {self._folder}: this driver was silent"
                f" for more than {DEAD_SECONDS:g} s and counted as dead, so it ends here"
            )

    def _took(self, folder: str, level: int) -> bool:
        before = _newest(folder)
        if before and _is_alive(folder, before, level):
            return False
        if not claim_file(join(folder, _name(before + 1)), self._encoded()):
            return False
        self._folder, self._number = folder, before + 1
        with suppress(OSError):  # old files cost only space
            remove(join(folder, _name(before)))
        return True

    def _renew(self) -> None:
        while not self._closing.wait(RENEW_SECONDS):
            with suppress(OSError):  # the next renewal may succeed
                newest = _newest(str(self._folder))
                if newest > self._number:
                    self._successor = _described(_read(str(self._folder), newest))
                    return
                self._write()
        self._content["released"] = True
        with suppress(OSError):  # then others wait until this owner is considered dead
            self._write()

    def _write(self) -> None:
        """Change the file."""
        self._content["changed"] = uuid4().hex
        write_file(join(str(self._folder), _name(self._number)), self._encoded())

    def _encoded(self) -> bytes:
        return json.dumps(self._content).encode()


def _name(number: int) -> str:
    return f"owner-{number:06d}.json"


def _newest(folder: str) -> int:
    """The number of the newest owner; 0 if there has been none."""
    return max((int(found[1]) for entry in list_folder(folder) if (found := NAME.fullmatch(entry.name))), default=0)


def _read(folder: str, number: int) -> dict[str, Any]:
    """The content of an owner's file; empty when the file is gone, as its successor removes it."""
    try:
        found = json.loads(read_file(join(folder, _name(number))))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_alive(folder: str, number: int, level: int) -> bool:
    """Whether an owner changes its file, or has a successor; watches the file for at most :data:`DEAD_SECONDS`."""
    found = _read(folder, number)
    if found.get("released"):
        return False
    log.log(level, "watching for up to %g s whether %s lives, which has this run", DEAD_SECONDS, _described(found))
    silent = 0.0
    while silent < DEAD_SECONDS:
        time.sleep(WATCH_SECONDS)
        asked = time.monotonic()
        if (now := _read(folder, number)) != found:
            return not now.get("released")
        silent += WATCH_SECONDS
        if time.monotonic() - asked > RENEW_SECONDS:
            silent = 0.0  # failures of storage silence the owner, too
    return False


def _taken(folder: str) -> ConfigError:
    owner = _described(_read(folder, _newest(folder)))
    return ConfigError(
        f"the run in {folder} is going on: {owner} has it. Wait until that ends, or end it; then train.resume continues"
        " the run. To train a second one beside it, leave train.resume out"
    )


def _described(content: dict[str, Any]) -> str:
    return f"the driver on host {content.get('host', 'unknown')} (process {content.get('process', 'unknown')})"
