import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkdl.errors import TrackingError
from sparkdl.tracking import journal as module
from sparkdl.tracking.journal import ENTRIES, Journal


def _steps(journal: Journal) -> list[int]:
    return [entry.content["step"] for entry in journal.pending]


@contextmanager
def _full_disk(folder: Path) -> Iterator[None]:
    """No file of this process grows beyond what the entries take now and half a line more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((folder / ENTRIES).stat().st_size + 20, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_is_not_delivered_is_there_for_the_next_process(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run", {"opened_as": "a"})
    for step in range(5):
        journal.append("metrics", {"step": step})
    journal.delivered(journal.head(2))
    journal.note(run_id="r")
    journal.close()
    again = Journal(tmp_path / "run")
    assert again.header["run_id"] == "r"
    assert _steps(again) == [2, 3, 4]
    assert again.append("metrics", {"step": 5}).number == 6
    again.close()


def test_one_process_at_a_time_has_it_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.2)
    journal = Journal(tmp_path / "run", {"opened_as": "a"})
    with pytest.raises(TrackingError, match="still being recorded by another process"):
        Journal(tmp_path / "run")
    journal.close()
    Journal(tmp_path / "run").close()


def test_a_line_that_a_crash_left_torn_is_dropped(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run", {"opened_as": "a"})
    for step in range(3):
        journal.append("metrics", {"step": step})
    journal.close()
    lines = (tmp_path / "run" / ENTRIES).read_bytes()
    (tmp_path / "run" / ENTRIES).write_bytes(lines[:-9])
    again = Journal(tmp_path / "run")
    again.append("metrics", {"step": 3})
    again.close()
    assert _steps(Journal(tmp_path / "run")) == [0, 1, 3]


def test_a_full_disk_keeps_records_in_memory_until_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(tmp_path / "run", {"opened_as": "a"})
    journal.append("metrics", {"step": 0})
    with _full_disk(tmp_path / "run"):
        for step in range(1, 4):
            journal.append("metrics", {"step": step})
    assert _steps(journal) == [0, 1, 2, 3]
    assert len(caplog.records) == 1 and "kept in memory" in caplog.text
    journal.append("metrics", {"step": 4})
    journal.close()
    assert _steps(Journal(tmp_path / "run")) == [0, 1, 2, 3, 4]


def test_a_file_of_delivered_entries_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHRINK_BYTES", 500)
    journal = Journal(tmp_path / "run", {"opened_as": "a"})
    for step in range(100):
        journal.delivered([journal.append("metrics", {"step": step})])
    assert (tmp_path / "run" / ENTRIES).stat().st_size < 1000
    journal.append("metrics", {"step": 100})
    journal.close()
    again = Journal(tmp_path / "run")
    assert [(entry.number, entry.content["step"]) for entry in again.pending] == [(101, 100)]


def test_a_header_is_on_the_disk_itself_before_it_takes_the_place_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_disk: set[int] = set()
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (fsync(file), on_disk.add(os.fstat(file).st_ino)))
    journal = Journal(tmp_path / "run", {"opened_as": "a"})
    journal.note(run_id="r")
    assert {(tmp_path / "run" / name).stat().st_ino for name in ("journal.json", "")} <= on_disk


def test_nothing_is_recorded_once_a_run_is_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run", {"opened_as": "a"})
    journal.close()
    with pytest.raises(TrackingError, match="is over"):
        journal.append("metrics", {"step": 0})


def test_only_the_owner_reads_it_and_nothing_is_left_of_a_run_that_ended(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "spool" / "run", {"opened_as": "a"})
    (journal.place() / "card.json").write_text("{}")
    for path in (journal.folder, journal.folder / ENTRIES, journal.folder / "journal.json"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    entry = journal.append("end", {"opened_as": "a"})
    journal.note(ended=True)
    journal.delivered([entry])
    journal.close()
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_told_before_anything_expensive(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TrackingError, match=r"set tracking\.spool"):
        Journal(tmp_path / "file" / "run", {})
