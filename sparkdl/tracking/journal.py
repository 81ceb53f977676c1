"""Journals: the records of a run, on disk until the store has them. Runs on the driver.

A journal is a folder that only its owner can read. ``journal.json`` describes the run and how many entries are
delivered, ``entries.jsonl`` has one entry per line and is only appended to, and ``files`` has the files of entries.
Only one process at a time has a journal open. It is removed when the run has ended and all entries are delivered.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice, takewhile
from pathlib import Path
from typing import Any
from uuid import uuid4

from sparkdl.errors import TrackingError

__all__ = ["Entry", "Journal", "read_header"]

log = logging.getLogger(__name__)

ENTRIES, FILES, HEADER = "entries.jsonl", "files", "journal.json"
LOCK_SECONDS = 5.0  # a run that was just interrupted may still be closing its journal
SHRINK_BYTES = 1 << 20  # a file of delivered entries is emptied once it is larger


@dataclass(frozen=True, eq=False)
class Entry:
    """One record for the store."""

    number: int
    """The running number. Objects in the store are marked with it, so that none is created twice."""
    kind: str
    content: dict[str, Any]
    answer: "Future[Any]" = field(default_factory=Future)
    """The store's result, or the error with which it refused the entry."""


class Journal:
    """The undelivered entries of one run. Raises :class:`TrackingError` if the folder cannot be used."""

    def __init__(self, folder: Path, header: Mapping[str, Any] | None = None) -> None:
        """Create a journal with a ``header``, or override its fields; without one, open an existing journal."""
        self.folder = folder
        self.pending: deque[Entry] = deque()
        self._unwritten: deque[tuple[Entry, bytes]] = deque()
        self._warned = self._closed = False
        self._guard, self._saving = threading.RLock(), threading.Lock()
        try:
            if header is not None:
                (folder / FILES).mkdir(parents=True, exist_ok=True)
                folder.chmod(0o700)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            self._take()
            self._file = os.open(folder / ENTRIES, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            known = read_header(folder) if (folder / HEADER).exists() else {"delivered": 0}
            self.header: dict[str, Any] = {**known, **(header or {})}
            self._size = self._read_entries()
            self._save_header()
        except OSError as error:
            raise TrackingError(
                f"cannot keep a run's records in {folder}: {error.strerror or error}; set tracking.spool to a folder"
                " that can be written"
            ) from None

    @staticmethod
    def folders(spool: str | Path) -> list[Path]:
        """The journals in a folder."""
        return sorted(header.parent for header in Path(spool).glob(f"*/{HEADER}"))

    def append(self, kind: str, content: Mapping[str, Any]) -> Entry:
        """Add an entry. It is on disk when this returns, or only in memory if the disk is full."""
        with self._guard:
            if self._closed:
                raise TrackingError(f"the run of {self.folder.name} is over; nothing can be recorded any more")
            entry = Entry(self._number + 1, kind, dict(content))
            line = json.dumps({"number": entry.number, "kind": kind, "content": entry.content}) + "\n"
            self._number += 1
            self.pending.append(entry)
            self._unwritten.append((entry, line.encode()))
            self._write()
        return entry

    def place(self) -> Path:
        """A new folder for the files of an entry; the entry's content names it under the key ``files``."""
        folder = self.folder / FILES / uuid4().hex
        folder.mkdir()
        return folder

    def files(self, entry: Entry) -> Path:
        """The folder of an entry's files."""
        return self.folder / FILES / Path(str(entry.content["files"])).name

    def head(self, most: int) -> list[Entry]:
        """The first undelivered entry, with those of the same kind that directly follow it, at most ``most``."""
        with self._guard:
            first = list(islice(self.pending, most))
        return list(takewhile(lambda entry: entry.kind == first[0].kind, first))

    def delivered(self, entries: Sequence[Entry]) -> None:
        """Remove the first entries, which the store has. If that is not saved, they are sent again without effect."""
        with self._guard:
            for entry in entries:
                self.pending.popleft()
                if self._unwritten and self._unwritten[0][0] is entry:
                    self._unwritten.popleft()
        self.note(delivered=entries[-1].number)
        with self._guard:
            if not self.pending and self._size > SHRINK_BYTES:
                os.ftruncate(self._file, 0)
                self._size = 0
        for entry in entries:
            if "files" in entry.content and not self.header.get("handed_out"):
                shutil.rmtree(self.files(entry), ignore_errors=True)

    def note(self, **facts: Any) -> None:
        """Save facts about the run in the header, for example its id in the store."""
        with self._guard:
            self.header |= facts
        with contextlib.suppress(OSError):
            self._save_header()

    def sync(self) -> None:
        """Flush the file to the disk, so that a power failure does not lose the last entries."""
        with self._guard:
            self._write()
        with contextlib.suppress(OSError):
            os.fsync(self._file)

    def close(self) -> None:
        """Close the journal, and remove it if the run has ended and all entries are delivered.

        It stays if a model's folder in it was given out in place of an address in the store.
        """
        with self._saving, self._guard:
            if self.header.get("ended") and not self.pending and not self.header.get("handed_out"):
                shutil.rmtree(self.folder, ignore_errors=True)
                with contextlib.suppress(OSError):
                    self.folder.parent.rmdir()
            self._closed = True
            os.close(self._file)
            os.close(self._lock)

    def _take(self) -> None:
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                return fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    os.close(self._lock)
                    raise TrackingError(
                        f"the run {self.folder.name} is still being recorded by another process ({self.folder}); wait"
                        " for it, or end it"
                    ) from None
            time.sleep(0.1)

    def _write(self) -> None:
        if not self._unwritten:
            return
        lines = b"".join(line for _, line in self._unwritten)
        try:
            written = os.write(self._file, lines)
            if written < len(lines):
                os.ftruncate(self._file, self._size)  # remove half a line, or the next entry would be appended to it
                raise OSError("the disk is full")
        except OSError as error:
            if not self._warned:
                log.warning("records are kept in memory: %s cannot be written (%s)", self.folder, error)
            self._warned = True
        else:
            self._size += written
            self._unwritten.clear()
            self._warned = False

    def _save_header(self) -> None:
        """Replace the header atomically, also in a power failure; threads that append do not wait for the disk."""
        with self._saving:
            with self._guard:
                text = json.dumps(self.header)
            new = self.folder / f"{HEADER}.new"
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            new.replace(self.folder / HEADER)
            folder = os.open(self.folder, os.O_RDONLY)
            os.fsync(folder)  # the folder has the file's name
            os.close(folder)

    def _read_entries(self) -> int:
        """Read undelivered entries up to a line that a crash left incomplete; returns the size of complete lines."""
        self._number, whole = int(self.header["delivered"]), 0
        with (self.folder / ENTRIES).open("rb") as file:
            for line in file:
                try:
                    entry = Entry(**json.loads(line))
                except (ValueError, TypeError):
                    log.warning("%s is torn after %d bytes; later records are lost", self.folder / ENTRIES, whole)
                    break
                whole += len(line)
                if entry.kind == "end" and entry.content.get("opened_as") == self.header.get("opened_as"):
                    self.header["ended"] = True
                if entry.number > self.header["delivered"]:
                    self.pending.append(entry)
                self._number = max(self._number, entry.number)
        os.ftruncate(self._file, whole)
        return whole


def read_header(folder: Path) -> dict[str, Any]:
    """The content of a journal's header. Raises :class:`TrackingError` if it is damaged, and FileNotFoundError."""
    path = folder / HEADER
    try:
        header = json.loads(path.read_text())
    except ValueError as error:  # invalid JSON or encoding
        raise _damaged(path, str(error)) from None
    if not isinstance(header, dict) or not isinstance(header.get("delivered"), int) or "opened_as" not in header:
        raise _damaged(path, "it lacks the run of the records, or how many were delivered")
    return header


def _damaged(path: Path, reason: str) -> TrackingError:
    return TrackingError(
        f"{path} is damaged ({reason}), and the records beside it cannot be delivered: restore it from a copy, or move"
        f" {path.parent} out of the spool"
    )
