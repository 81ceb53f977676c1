"""Which driver a run belongs to: one at a time writes to its folder, adopts its checkpoints and registers its model.

The owner has a file in the run's folder and changes it every few seconds. Whoever wants the run watches that file by a
clock of their own: as long as it changes the owner lives, however the clocks of two machines differ. Each owner's file
has a number, one more than the file of the owner before, and is created only if nobody has created it: of two drivers
that want the run of a dead one, one gets it. An owner that was taken for dead finds the higher number, and stops.
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
from sparkdl.storage import join, locate

__all__ = ["Owner"]

log = logging.getLogger(__name__)

RENEW_SECONDS = 3.0
DEAD_SECONDS = 20.0  # without a change; shorter than what it takes to find out by other means, longer than a hiccup
WATCH_SECONDS = 0.5  # between two looks at another owner's file
NAME = re.compile(r"owner-(\d{6})\.json")


class Owner:
    """A driver as the owner of at most one run; entered with the folder of a run that is to be continued.

    Entering and :meth:`claim` raise :class:`~sparkdl.errors.ConfigError` while another driver has the run, and
    :class:`~sparkdl.errors.CheckpointError` when storage does not take or give the file.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._folder = folder
        self._path = ""
        self._number = 0
        self._content: dict[str, Any] = {"host": socket.gethostname(), "process": os.getpid(), "released": False}
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
        """Let others have the run at once."""
        if self._path:
            self._closing.set()
            self._renewal.join()
            with suppress(OSError):  # then others have to watch for a while
                self._write(released=True)

    def claim(self, folder: str) -> None:
        """Take a run's folder, which is made if it is new."""
        try:
            filesystem, location = locate(folder)
            filesystem.makedirs(location, exist_ok=True)
            before = _newest(folder)
            path = join(location, _name(before + 1))
            if before and _is_alive(folder, before):
                raise _taken(folder)
            try:
                filesystem.pipe_file(path, self._encoded(), mode="create")
            except FileExistsError:
                raise _taken(folder) from None
        except OSError as error:
            raise CheckpointError(
                f"cannot write to {folder}: {error.strerror or error}; set train.run_dir to another place"
            ) from None
        self._folder, self._number, self._path = folder, before + 1, path
        with suppress(OSError):  # what stays costs only space
            filesystem.rm_file(join(location, _name(before)))
        self._renewal.start()

    def check(self) -> None:
        """Raise :class:`~sparkdl.errors.TrainingError` when another driver has taken this one for dead."""
        if self._successor:
            raise TrainingError(
                f"the run in {self._folder} goes on under {self._successor}: this driver was silent for more than"
                f" {DEAD_SECONDS:g} s and was taken for dead, and ends here"
            )

    def _renew(self) -> None:
        while not self._closing.wait(RENEW_SECONDS) and not self._successor:
            with suppress(OSError):  # of storage that will answer again
                newest = _newest(str(self._folder))
                if newest > self._number:
                    self._successor = _described(_read(str(self._folder), newest))
                else:
                    self._write()

    def _write(self, **changes: Any) -> None:
        self._content |= changes
        filesystem, _ = locate(str(self._folder))
        partial = f"{self._path}.part"
        filesystem.pipe_file(partial, self._encoded())
        filesystem.mv(partial, self._path)

    def _encoded(self) -> bytes:
        return json.dumps(self._content | {"changed": uuid4().hex}).encode()


def _name(number: int) -> str:
    return f"owner-{number:06d}.json"


def _newest(folder: str) -> int:
    """The number of the last owner; 0 if there has been none."""
    filesystem, location = locate(folder)
    filesystem.invalidate_cache()
    names = (str(path).rpartition("/")[2] for path in filesystem.ls(location, detail=False))
    return max((int(found[1]) for name in names if (found := NAME.fullmatch(name))), default=0)


def _read(folder: str, number: int) -> dict[str, Any]:
    """What an owner's file says; nothing when it is gone, as after its successor came."""
    filesystem, location = locate(folder)
    try:
        found = json.loads(filesystem.cat_file(join(location, _name(number))))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_alive(folder: str, number: int) -> bool:
    """Whether an owner changes its file, or another one comes; watches for as long as a living one may be silent."""
    found = _read(folder, number)
    if found.get("released"):
        return False
    log.info("watching for up to %g s whether %s lives, which has this run", DEAD_SECONDS, _described(found))
    started = time.monotonic()
    while time.monotonic() - started < DEAD_SECONDS:
        time.sleep(WATCH_SECONDS)
        if (now := _read(folder, number)) != found:
            return not now.get("released")
    return False


def _taken(folder: str) -> ConfigError:
    owner = _described(_read(folder, _newest(folder)))
    return ConfigError(
        f"the run in {folder} is going on: {owner} has it. Wait until that ends, or end it; then train.resume continues"
        " the run. To train a second one beside it, leave train.resume out"
    )


def _described(content: dict[str, Any]) -> str:
    return f"the driver on host {content.get('host', 'unknown')} (process {content.get('process', 'unknown')})"
