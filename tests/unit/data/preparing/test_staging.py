import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from sparkdl.data.card import CARD_NAME, ROW_GROUPS_NAME
from sparkdl.data.dataset import Dataset
from sparkdl.data.preparing import staging as module
from sparkdl.data.preparing.staging import staging
from sparkdl.errors import DatasetError
from sparkdl.storage import join, list_folder, locate, upload_files, write_file

from ....s3_server import S3Server
from ..conftest import MakeDataset


class ObjectStore(LocalFileSystem):
    """Files in a folder that come and go one by one, as on object stores."""

    protocol = "store"

    def __init__(self, **options: Any) -> None:
        super().__init__(auto_mkdir=True, **options)

    @classmethod
    def _strip_protocol(cls, path: str) -> Any:
        return LocalFileSystem._strip_protocol(str(path).removeprefix("store://"))


fsspec.register_implementation("store", ObjectStore, clobber=True)
STORAGE = pytest.mark.parametrize("scheme", ["", "store://"], ids=["local", "object store"])


def fill(folder: str, dataset: Dataset) -> None:
    """Write what a dataset holds, the card last."""
    target = Path(folder.removeprefix("store://"))
    (target / "train").mkdir(parents=True, exist_ok=True)
    files = [f"train/{Path(group.path).name}" for group in dataset.row_groups("train")]
    for name in [*files, ROW_GROUPS_NAME, CARD_NAME]:
        (target / name).write_bytes(Path(dataset.path, name).read_bytes())


def publish(output: str, dataset: Dataset) -> bool:
    with staging(output, seal=CARD_NAME) as folder:
        fill(folder.path, dataset)
        return folder.publish()


def in_a_process_killed_at_line(number: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that gets SIGKILL before the n-th line of `staging.py` runs; whether it got so far."""
    child = os.fork()
    if not child:
        left = number

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename != module.__file__:
                return None
            left -= event == "line"
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@STORAGE
def test_a_process_killed_at_any_line_leaves_a_whole_dataset_or_none_and_the_next_one_cleans_up(
    make_dataset: MakeDataset, tmp_path: Path, scheme: str
) -> None:
    dataset = make_dataset([4, 4])
    place = tmp_path / "place"
    place.mkdir()
    output = f"{scheme}{place}/out"
    number, outcomes = 0, []
    while in_a_process_killed_at_line(number, lambda: publish(output, dataset)):
        number += 1
        try:
            Dataset.open(output).verify()
            outcomes.append("whole")
        except DatasetError as error:
            assert "there is no dataset in" in str(error)
            outcomes.append("none")
        if outcomes[-1] == "none":
            assert publish(output, dataset)
        else:
            with pytest.raises(DatasetError, match="exists already"):
                publish(output, dataset)
        Dataset.open(output).verify()
        assert [path.name for path in place.iterdir()] == ["out"]
        LocalFileSystem().rm(f"{place}/out", recursive=True)
    assert number > 30
    assert outcomes == sorted(outcomes)  # none, until it is there
    assert set(outcomes) == {"none", "whole"}


def publish_disturbed(first: module.Staging, second: module.Staging, number: int) -> tuple[list[bool], bool]:
    """Publish the second folder before the n-th line that publishing the first one runs in `staging.py`, or after all.

    Returns who has published, and whether there was such a line.
    """
    left, published = number, [False, False]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != module.__file__:
            return None
        left -= event == "line"
        if left == -1 and event == "line":
            published[1] = second.publish()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        published[0] = first.publish()
    finally:
        sys.settrace(before)
    if left >= 0:
        published[1] = second.publish()
    return published, left < 0


@STORAGE
def test_of_two_who_publish_at_once_one_is_first_and_nothing_is_mixed_wherever_they_meet(
    make_dataset: MakeDataset, tmp_path: Path, scheme: str
) -> None:
    dataset = make_dataset([4, 4])
    output = f"{scheme}{tmp_path}/out"
    number, met, winners = 0, True, []
    while met:
        with staging(output, seal=CARD_NAME) as first, staging(output, seal=CARD_NAME) as second:
            for name, folder in {"first": first, "second": second}.items():
                fill(folder.path, dataset)
                write_file(join(folder.path, name), b"")
            published, met = publish_disturbed(first, second, number)
        assert sorted(published) == [False, True]
        winners.append("first" if published[0] else "second")
        Dataset.open(output).verify()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["dataset", "out"]
        assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
            [CARD_NAME, ROW_GROUPS_NAME, winners[-1], "train"]
        )
        LocalFileSystem().rm(f"{tmp_path}/out", recursive=True)
        number += 1
    assert winners == sorted(winners, reverse=True)  # the second, until the first has the place
    assert set(winners) == {"first", "second"}


def test_on_s3_one_of_those_who_prepare_at_once_is_first_and_its_dataset_is_whole(
    make_dataset: MakeDataset, s3: S3Server
) -> None:
    dataset, output = make_dataset([4, 4]), "s3://tests/out"
    with ExitStack() as stack:
        folders = [stack.enter_context(staging(output, seal=CARD_NAME)) for _ in range(4)]
        for number, folder in enumerate(folders):
            upload_files(folder.path, Path(dataset.path))
            write_file(join(folder.path, f"of {number}"), b"")
        with ThreadPoolExecutor(len(folders)) as pool:
            found = list(pool.map(module.Staging.publish, folders))
    assert sum(found) == 1
    Dataset.open(output).verify()
    assert [entry.name for entry in list_folder("s3://tests")] == ["out"]
    assert [entry.name for entry in list_folder(output)] == [
        CARD_NAME,
        f"of {found.index(True)}",
        ROW_GROUPS_NAME,
        "train",
    ]
    with pytest.raises(DatasetError, match="exists already"), staging(output, seal=CARD_NAME):
        pytest.fail("work began")


def test_who_claims_the_place_of_a_dataset_that_is_there_meanwhile_leaves_it_alone(
    make_dataset: MakeDataset, s3: S3Server
) -> None:
    dataset, output = make_dataset([4, 4]), "s3://tests/out"
    with staging(output, seal=CARD_NAME) as late, staging(output, seal=CARD_NAME) as first:
        upload_files(first.path, Path(dataset.path))
        write_file(join(late.path, "train"), b"")  # without a seal: its move would fail, and clear the place
        assert first.publish()
        assert not late.publish()
    Dataset.open(output).verify()


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyError), staging(str(tmp_path / "out"), seal=CARD_NAME) as folder:
        (Path(folder.path) / "half").write_text("half")
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_what_fails_while_it_moves_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), staging(f"store://{tmp_path}/out", seal=CARD_NAME) as folder:
        write_file(join(folder.path, "rows"), b"rows")
        folder.publish()  # without a seal
    assert list(tmp_path.iterdir()) == []


def test_files_that_killed_tasks_left_unfinished_are_not_published(tmp_path: Path) -> None:
    with staging(str(tmp_path / "out"), seal=CARD_NAME) as folder:
        (Path(folder.path) / CARD_NAME).touch()
        (Path(folder.path) / "train").mkdir()
        (Path(folder.path) / "train" / ".0123.part").write_text("half")
        assert folder.publish()
    assert [str(path.relative_to(tmp_path)) for path in (tmp_path / "out").rglob("*.*")] == ["out/card.json"]


def test_an_output_that_cannot_be_written_is_found_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DatasetError, match="cannot write to"),
        staging(str(tmp_path / "file" / "out"), seal=CARD_NAME),
    ):
        pytest.fail("work began")


def test_an_output_that_is_something_else_is_kept(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years")
    with pytest.raises(DatasetError, match="exists already"), staging(str(tmp_path / "out"), seal=CARD_NAME):
        pytest.fail("work began")
    assert (tmp_path / "out" / "thesis.txt").read_text() == "years"
    assert len(list(tmp_path.iterdir())) == 1


def test_leftovers_of_dead_processes_are_removed_and_of_others_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def leftover(owner: str) -> Path:
        (tmp_path / f".out.preparing-{owner}").mkdir()
        return tmp_path / f".out.preparing-{owner}"

    with staging(str(tmp_path / "out"), seal=CARD_NAME) as alive:
        born, pid, number, processes = alive.path.partition(".preparing-")[2].split("-")
        dead = leftover(f"{int(born) - 1000}-{pid}-{number}-{processes}")
        ended = leftover(f"{born}-{2**22 + 1}-{number}-{processes}")  # Linux has no larger number than 2 ** 22
        elsewhere = leftover(f"{int(born) - 1000}-{pid}-{number}-{'0' * 16}")
        stranger = leftover("stranger")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "_preparing").write_text(dead.name)
        with staging(str(tmp_path / "out"), seal=CARD_NAME):
            assert not dead.exists()
            assert not ended.exists()
            assert not (tmp_path / "out").exists()
            assert elsewhere.exists()
            assert stranger.exists()
            assert Path(alive.path).exists()
    assert caplog.text.count("is kept") == 1 and str(elsewhere) in caplog.text


@pytest.mark.parametrize("where", ["another machine", "a container of the same name"])
def test_an_unfinished_folder_is_kept_whose_process_cannot_be_asked(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as there:
        if where == "another machine":
            there.setattr(socket, "gethostname", lambda: "elsewhere")
        else:
            there.setattr(Path, "readlink", lambda path: Path("pid:[1]"))
            there.setattr(os, "getpid", lambda: 2**22 + 1)
        alive = module.Staging(str(tmp_path / "out"), seal=CARD_NAME)
        alive.create()
    with monkeypatch.context() as later:
        now = time.time()
        later.setattr(time, "time", lambda: now + 2 * 24 * 3600)  # clocks differ, and are set
        with staging(str(tmp_path / "out"), seal=CARD_NAME):
            assert Path(alive.path).exists()


@pytest.mark.parametrize("output", ["/x", "/a/x", "x", "a/x"])
def test_spark_and_python_write_to_the_same_folder(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = module.Staging(output, seal=CARD_NAME)
    assert Path(locate(folder.path)[1]).parent == Path(locate(output)[1]).parent
