"""Preparing, while processes are killed and stopped and disks are full: a whole dataset, or none."""

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

from sparkdl.data import Dataset, prepare
from sparkdl.errors import DatasetError
from sparkdl.settings import Prepare, Source, Split
from tests.conftest import end_processes

COMMAND = [sys.executable, "-c", "from sparkdl import main; main()", "prepare"]
CONFIGURATION = """
prepare:
  output: {output}
  source: {{format: parquet, path: {source}}}
  split: {{fractions: {{}}}}
  num_ranks: {groups}
  seed: {seed}
cluster:
  options: {{spark.driver.memory: 512m, spark.sql.shuffle.partitions: 2}}
"""
GROUPS = 12
WAIT_SECONDS = 200

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture(scope="module")
def source(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Source:
    """20,000 rows of two numbers and a label."""
    path = tmp_path_factory.mktemp("raw") / "rows"
    rows = spark.range(20_000).selectExpr("array(cast(id as float), id % 7) as x", "id % 3 as label")
    rows.write.parquet(str(path))
    return Source(format="parquet", path=str(path))


@pytest.fixture
def start(source: Source, tmp_path: Path) -> Iterator[Start]:
    """Starts `sparkdl prepare` as a process of its own; what is left of them afterwards is ended."""
    started: list[psutil.Process] = []

    def start_process(
        output: Path, *, groups: int = GROUPS, seed: int = 0, limit: Callable[[], None] | None = None
    ) -> "subprocess.Popen[str]":
        configuration = tmp_path / f"{len(started)}.yaml"
        configuration.write_text(CONFIGURATION.format(output=output, source=source.path, groups=groups, seed=seed))
        pipe = subprocess.PIPE
        process = subprocess.Popen([*COMMAND, configuration], stdout=pipe, stderr=pipe, text=True, preexec_fn=limit)
        started.append(psutil.Process(process.pid))
        return process

    yield start_process
    end_processes([process for process in started if process.is_running()])


def settings(output: Path, seed: int = 0) -> Prepare:
    return Prepare(output=str(output), split=Split(fractions={}), num_ranks=GROUPS, seed=seed)


def send_while_writing(place: Path, signals: dict["subprocess.Popen[str]", signal.Signals]) -> None:
    """Send each process its signal as soon as its tasks have written a first file."""
    deadline = time.monotonic() + WAIT_SECONDS
    while signals:
        for process in list(signals):
            if any(place.glob(f".out.preparing-*-{process.pid}-*/train/part-*")):
                process.send_signal(signals.pop(process))
            elif process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"nothing was written: {process.communicate()}")
        time.sleep(0.01)


def loads_pytorch(job: "subprocess.Popen[str]") -> bool:
    """Whether the process that a job's tasks are forked from took the seconds to load PyTorch."""
    daemon = next(filter(is_daemon, psutil.Process(job.pid).children(recursive=True)))
    return any("libtorch" in library.path for library in daemon.memory_maps())


def is_daemon(process: psutil.Process) -> bool:
    with suppress(psutil.Error):  # it has ended
        return "sparkdl.daemon" in process.cmdline()
    return False


def test_of_three_in_one_place_the_killed_leaves_nothing_one_is_whole_and_the_slow_one_is_told(
    spark: SparkSession, source: Source, start: Start, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    killed, slow = start(place / "out"), start(place / "out", seed=1)
    send_while_writing(place, {killed: signal.SIGKILL, slow: signal.SIGSTOP})
    killed.wait()
    assert not loads_pytorch(slow)
    assert len([path for path in place.iterdir() if path.name.startswith(".out.preparing-")]) == 2
    with pytest.raises(DatasetError, match="there is no dataset in"):
        Dataset.open(str(place / "out"))
    dataset = prepare(source, settings(place / "out"), spark=spark)
    slow.send_signal(signal.SIGCONT)
    _, problem = slow.communicate(timeout=WAIT_SECONDS)
    assert slow.returncode == 2, problem
    assert "another run has prepared another dataset in" in problem
    assert Dataset.open(dataset.path) == dataset
    dataset.verify()
    assert [path.name for path in place.iterdir()] == ["out"]


def test_two_who_prepare_the_same_at_once_get_the_same_whole_dataset(
    spark: SparkSession, source: Source, tmp_path: Path
) -> None:
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda _: prepare(source, settings(tmp_path / "out"), spark=spark), range(2))
    assert first == second
    first.verify()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None] | None]]:
    """A file system of 128 KiB; where nobody may mount one, a process that may not write larger files."""
    folder = tmp_path / "disk"
    folder.mkdir()
    size = 1 << 17
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode == 0:
        yield folder, None
        subprocess.run(["umount", str(folder)], check=True)
    else:
        yield folder, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_full_disk_is_named_and_nothing_is_left_on_it(
    start: Start, small_disk: tuple[Path, Callable[[], None] | None]
) -> None:
    folder, limit = small_disk
    process = start(folder / "out", groups=1, limit=limit)
    _, problem = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 74
    assert f"sparkdl: cannot write {folder}/out: " in problem and "Make room" in problem
    assert list(folder.iterdir()) == []
