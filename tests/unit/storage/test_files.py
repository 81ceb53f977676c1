"""Files and folders here and on an S3 server."""

import gzip
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from sparkdl.errors import StorageError
from sparkdl.storage import (
    check_writable,
    claim_file,
    download_files,
    exists,
    glob,
    hash_file,
    hash_folder,
    join,
    list_folder,
    make_folder,
    move_files,
    open_file,
    read_file,
    remove,
    remove_unfinished,
    rename_folder,
    upload_files,
    write_file,
)


@pytest.fixture(params=["local", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty folder in either place."""
    if request.param == "local":
        return str(tmp_path)
    request.getfixturevalue("s3")
    return "s3://tests/folder"


def fill(folder: str, *names: str) -> None:
    for name in names:
        path = join(folder, name)
        make_folder(path.rpartition("/")[0])
        write_file(path, name.encode())


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


def test_a_folder_lists_what_others_write_there(folder: str) -> None:
    assert list_folder(folder) == []
    fill(folder, "b", "a", "deeper/c")
    assert [(entry.name, entry.is_folder) for entry in list_folder(folder)] == [
        ("a", False),
        ("b", False),
        ("deeper", True),
    ]
    assert list_folder(join(folder, "absent")) == []
    assert glob(join(folder, "[a-b]")) == [join(folder, "a"), join(folder, "b")]


def test_what_is_missing_is_missing_everywhere(folder: str) -> None:
    path = join(folder, "absent")
    for read in (read_file, hash_file, hash_folder, lambda path: move_files(path, path + "2")):
        with pytest.raises(FileNotFoundError):
            read(path)
    assert not exists(path)
    remove(path)


def test_folders_are_moved_copied_and_removed_with_all_that_is_in_them(folder: str, tmp_path: Path) -> None:
    fill(folder, "here/a", "here/deeper/b")
    make_folder(join(folder, "there/deeper"))
    before = hash_folder(join(folder, "here"))
    move_files(join(folder, "here"), join(folder, "there"))
    remove(join(folder, "here"))
    assert not exists(join(folder, "here"))
    download_files(join(folder, "there"), tmp_path / "copy")
    upload_files(join(folder, "back"), tmp_path / "copy")
    assert hash_folder(join(folder, "there")) == hash_folder(join(folder, "back")) == before
    remove(join(folder, "there"))
    assert not exists(join(folder, "there"))


def test_of_many_who_claim_a_file_one_has_it_and_may_ask_again(folder: str) -> None:
    path = join(folder, "claim")
    owners = [b"%d" % number for number in range(8)]
    with ThreadPoolExecutor(len(owners)) as pool:
        found = list(pool.map(partial(claim_file, path), owners))
    assert sum(found) == 1
    assert [claim_file(path, owner) for owner in owners] == found
    assert read_file(path) == owners[found.index(True)]


def test_a_place_for_folders_on_local_disks_goes_to_one_of_them(tmp_path: Path) -> None:
    folders = [str(tmp_path / f"unfinished-{number}") for number in range(4)]
    for folder in folders:
        fill(folder, f"file of {Path(folder).name}")
    with ThreadPoolExecutor(len(folders)) as pool:
        found = list(pool.map(partial(rename_folder, target=str(tmp_path / "place")), folders))
    assert sum(found) == 1
    winner = Path(folders[found.index(True)])
    assert [path.name for path in (tmp_path / "place").iterdir()] == [f"file of {winner.name}"]
    assert len(list(tmp_path.iterdir())) == len(folders) and not winner.exists()


class Hdfs(LocalFileSystem):
    """A folder with the renaming of HDFS, as its specification of file systems has it: into a folder that is there."""

    protocol = "webhdfs"
    renamed = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return LocalFileSystem._strip_protocol(str(path).removeprefix("webhdfs://"))

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        with self.renamed:
            if self.isdir(path2):
                path2 = f"{path2}/{Path(path1).name}"
            if self.exists(path2):
                return  # WebHDFS answers "false", which fsspec does not tell
            Path(path1).rename(path2)


fsspec.register_implementation("webhdfs", Hdfs, clobber=True)


@pytest.fixture
def hdfs(tmp_path: Path) -> str:
    return f"webhdfs://{tmp_path}"


def test_on_hdfs_one_of_several_folders_takes_the_place_and_the_others_leave_it_alone(hdfs: str) -> None:
    folders = [join(hdfs, f"unfinished-{number}") for number in range(4)]
    for folder in folders:
        fill(folder, "file", f"file of {folder.rpartition('/')[2]}")
    with ThreadPoolExecutor(len(folders)) as pool:
        found = list(pool.map(partial(rename_folder, target=join(hdfs, "place")), folders))
    assert sum(found) == 1
    winner = folders[found.index(True)].rpartition("/")[2]
    assert [entry.name for entry in list_folder(join(hdfs, "place"))] == ["file", f"file of {winner}"]


def test_on_hdfs_a_file_takes_the_place_of_another(hdfs: str) -> None:
    for content in (b"first", b"second"):
        write_file(join(hdfs, "file"), content)
    assert read_file(join(hdfs, "file")) == b"second"
    assert [entry.name for entry in list_folder(hdfs)] == ["file"]


def test_what_killed_processes_had_begun_to_write_is_removed(tmp_path: Path) -> None:
    fill(str(tmp_path), "whole", "deeper/whole")
    for path in (tmp_path / ".0123.part", tmp_path / "deeper" / ".4567.part"):
        path.touch()
    remove_unfinished(str(tmp_path))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deeper", "whole", "whole"]
    remove_unfinished(str(tmp_path / "absent"))


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
