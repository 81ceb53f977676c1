"""Folders here, on an S3 server, and on one with the renaming of HDFS: listed, moved, copied, hashed, cleaned up."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from sparkdl.storage import (
    download_files,
    exists,
    glob,
    hash_folder,
    join,
    list_files,
    list_folder,
    make_folder,
    move_files,
    remove,
    remove_unfinished,
    rename_folder,
    upload_files,
    write_file,
)

from .filling import fill


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


def test_files_are_listed_by_their_paths_within_the_folder(folder: str) -> None:
    fill(folder, "b", "deeper/still/c", "deeper/a")
    assert list_files(folder) == ["b", "deeper/a", "deeper/still/c"]
    assert list_files(join(folder, "absent")) == []


def test_a_hash_is_of_names_and_contents_and_of_nothing_that_hadoop_adds_or_leaves_out(folder: str) -> None:
    one, two, three, nothing = (join(folder, name) for name in ("one", "two", "three", "nothing"))
    fill(one, "a", "deeper/b")
    fill(two, "a", "deeper/b", "_SUCCESS", "deeper/.b.crc")
    assert hash_folder(one) == hash_folder(two)
    write_file(join(two, "a"), b"altered")
    fill(three, "a", "deeper/c")
    assert len({hash_folder(each) for each in (one, two, three)}) == 3
    fill(nothing, "_SUCCESS")
    with pytest.raises(FileNotFoundError):
        hash_folder(nothing)


def test_a_folder_whose_name_is_taken_stays_where_it_is(tmp_path: Path) -> None:
    fill(str(tmp_path), "mine/file", "taken/other")
    assert not rename_folder(str(tmp_path / "mine"), str(tmp_path / "taken"))
    assert list_files(str(tmp_path)) == ["mine/file", "taken/other"]


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


def test_on_hdfs_one_of_several_folders_takes_the_place_and_the_others_leave_it_alone(hdfs: str) -> None:
    folders = [join(hdfs, f"unfinished-{number}") for number in range(4)]
    for folder in folders:
        fill(folder, "file", f"file of {folder.rpartition('/')[2]}")
    with ThreadPoolExecutor(len(folders)) as pool:
        found = list(pool.map(partial(rename_folder, target=join(hdfs, "place")), folders))
    assert sum(found) == 1
    winner = folders[found.index(True)].rpartition("/")[2]
    assert [entry.name for entry in list_folder(join(hdfs, "place"))] == ["file", f"file of {winner}"]


def test_what_killed_processes_had_begun_to_write_is_removed(tmp_path: Path) -> None:
    fill(str(tmp_path), "whole", "deeper/whole")
    for path in (tmp_path / ".0123.part", tmp_path / "deeper" / ".4567.part"):
        path.touch()
    remove_unfinished(str(tmp_path))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deeper", "whole", "whole"]
    remove_unfinished(str(tmp_path / "absent"))
