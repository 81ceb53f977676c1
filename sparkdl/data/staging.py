"""All or nothing: a dataset is written beside its place and moved there whole, the card last."""

import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psutil

from sparkdl.data.card import CARD_NAME, Card
from sparkdl.data.storage import join, locate
from sparkdl.errors import DatasetError

__all__ = ["Staging", "staging"]

_MARKER = "_preparing.json"
"""In every unfinished folder: which process is writing it."""
_FORGOTTEN_SECONDS = 24 * 3600
"""An unfinished folder of another machine is taken for abandoned after a day: its process cannot be asked."""


class Staging:
    """The temporary folder that a dataset is written to."""

    def __init__(self, output: str) -> None:
        self._filesystem, self._output = locate(output)
        parent, _, self._name = self._output.rpartition("/")
        self._prefix = f"{parent}/.{self._name}.preparing-"
        self._folder = self._prefix + uuid.uuid4().hex[:12]
        # The same place, spelled the way the user spelled the output, so that Spark understands it too.
        self.path = join(output.rstrip("/").rpartition("/")[0] or ".", self._folder.rpartition("/")[2])

    def create(self) -> None:
        """Make the folder, after removing what failed runs left behind."""
        try:
            self._remove_abandoned()
            self._filesystem.makedirs(self._folder)
            self._filesystem.pipe_file(join(self._folder, _MARKER), json.dumps(_this_process()).encode())
        except OSError as error:
            raise DatasetError(
                f"cannot write the dataset to {self._output}: {error.strerror or error}. Choose another `output`, or "
                "make its parent folder writable."
            ) from None
        if self._filesystem.exists(self._output):
            raise DatasetError(
                f"{self._output} exists and is not a dataset. Choose another `output`, or remove it if nothing needs "
                "it."
            )

    def publish(self, card: Card) -> None:
        """Move the folder to its place and write the card, which makes it a dataset."""
        if self._filesystem.exists(self._output):
            raise DatasetError(f"{self._output} was written by another run meanwhile; nothing was changed there")
        self._filesystem.mv(self._folder, self._output, recursive=True)
        unfinished = join(self._output, f"{CARD_NAME}.part")
        self._filesystem.pipe_file(unfinished, card.to_json().encode())
        self._filesystem.mv(unfinished, join(self._output, CARD_NAME))
        self._filesystem.rm(join(self._output, _MARKER))

    def discard(self) -> None:
        """Remove the folder if it is still there."""
        if self._filesystem.exists(self._folder):
            self._filesystem.rm(self._folder, recursive=True)

    def _remove_abandoned(self) -> None:
        parent = self._output.rpartition("/")[0]
        siblings = self._filesystem.ls(parent, detail=False) if self._filesystem.isdir(parent) else []
        unfinished = [path.rstrip("/") for path in siblings if self._is_ours(path.rstrip("/"))]
        for folder in unfinished:
            with suppress(FileNotFoundError, ValueError, KeyError):
                if _abandoned(json.loads(self._filesystem.cat_file(join(folder, _MARKER)))):
                    self._filesystem.rm(folder, recursive=True)

    def _is_ours(self, folder: str) -> bool:
        name = folder.rpartition("/")[2]
        if name == self._name:
            return not self._filesystem.exists(join(folder, CARD_NAME))
        return name.startswith(self._prefix.rpartition("/")[2])


@contextmanager
def staging(output: str) -> Iterator[Staging]:
    """A folder to write a dataset to, removed again unless it is published. Runs on the driver.

    Raises :class:`DatasetError` before anything else happens when ``output`` cannot be written or is something else.
    """
    folder = Staging(output)
    try:
        folder.create()
        yield folder
    finally:
        folder.discard()


def _this_process() -> dict[str, Any]:
    process = psutil.Process()
    return {"host": socket.gethostname(), "pid": os.getpid(), "born": process.create_time(), "started": time.time()}


def _abandoned(owner: dict[str, Any]) -> bool:
    if owner["host"] != socket.gethostname():
        return bool(time.time() - owner["started"] > _FORGOTTEN_SECONDS)
    try:
        # Process numbers are reused; the time of birth tells the owner from a stranger.
        return bool(abs(psutil.Process(owner["pid"]).create_time() - owner["born"]) > 1)
    except psutil.NoSuchProcess:
        return True
