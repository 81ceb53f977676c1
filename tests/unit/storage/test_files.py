"""Files here, on an S3 server, and on one with the renaming of HDFS."""

import gzip
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sparkdl.errors import StorageError
from sparkdl.storage import (
    check_writable,
    claim_file,
    exists,
    hash_file,
    hash_folder,
    join,
    list_folder,
    move_files,
    open_file,
    read_file,
    remove,
    write_file,
)

from .filling import fill


def test_what_is_written_is_read_whole_or_in_part(folder: str) -> None:
    path = join(folder, "file")
    for content in (b"first", memoryview(b"0123456789")):
        write_file(path, content)
    assert read_file(path) == b"0123456789"
    assert read_file(path, start=3, end=6) == b"345"
    with open_file(path) as stream:
        assert (stream.read(2), stream.seek(-3, os.SEEK_END), stream.read(9)) == (b"01", 7, b"789")


def test_a_packed_stream_is_unpacked_from_where_it_lies(folder: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(10_000))
    write_file(join(folder, "lines.gz"), gzip.compress(lines))
    with gzip.open(open_file(join(folder, "lines.gz"))) as stream:
        assert stream.read() == lines


def test_what_is_missing_is_missing_everywhere(folder: str) -> None:
    path = join(folder, "absent")
    for read in (read_file, hash_file, hash_folder, lambda path: move_files(path, path + "2")):
        with pytest.raises(FileNotFoundError):
            read(path)
    assert not exists(path)
    remove(path)


def test_of_many_who_claim_a_file_one_has_it_and_may_ask_again(folder: str) -> None:
    path = join(folder, "claim")
    owners = [b"%d" % number for number in range(8)]
    with ThreadPoolExecutor(len(owners)) as pool:
        found = list(pool.map(partial(claim_file, path), owners))
    assert sum(found) == 1
    assert [claim_file(path, owner) for owner in owners] == found
    assert read_file(path) == owners[found.index(True)]


def test_on_hdfs_a_file_takes_the_place_of_another(hdfs: str) -> None:
    for content in (b"first", b"second"):
        write_file(join(hdfs, "file"), content)
    assert read_file(join(hdfs, "file")) == b"second"
    assert [entry.name for entry in list_folder(hdfs)] == ["file"]


def test_a_folder_is_removed_though_somebody_renames_a_file_in_it_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(str(tmp_path), "folder/part", "folder/whole")
    unlink = os.unlink

    def renamed_before(path: str, **options: Any) -> None:
        monkeypatch.setattr(os, "unlink", unlink)
        (tmp_path / "folder" / "part").rename(tmp_path / "folder" / "done")
        (tmp_path / "folder" / "whole").rename(tmp_path / "folder" / "finished")
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", renamed_before)
    remove(str(tmp_path / "folder"))
    assert not (tmp_path / "folder").exists()


def test_what_is_written_late_does_not_bring_back_a_folder_that_was_removed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_file(str(tmp_path / "removed" / "file"), b"late", makes_folder=False)
    assert not any(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_leaves_nothing_and_what_was_there(tmp_path: Path) -> None:
    write_file(str(tmp_path / "file"), b"before")
    with pytest.raises(TypeError):
        write_file(str(tmp_path / "file"), "no bytes")  # type: ignore[arg-type]
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]


def test_to_ask_whether_a_folder_can_be_written_makes_nothing(folder: str) -> None:
    before = list_folder(folder)
    check_writable(join(folder, "not", "there"))
    assert list_folder(folder) == before


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=f"cannot write to {tmp_path}/file/runs: Not a directory"):
        check_writable(f"{tmp_path}/file/runs")
