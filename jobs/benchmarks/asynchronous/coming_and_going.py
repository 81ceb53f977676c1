"""Downpour under dynamic allocation: executors from one to four and back to two, in the middle of epochs."""

import json
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel

import sparkdl
from benchmarks.asynchronous.submitted import __file__ as program_file
from benchmarks.faults.run import IMPORTED_FROM
from benchmarks.report import Report, Target
from benchmarks.standalone import StandaloneCluster, standalone_cluster

__all__ = ["DYNAMIC", "CoursePoint", "Executors", "Phase", "measure", "reports"]

CORES = 2  # of an executor: the first one has a server and a worker
MOST, LEFT = 4, 2
"""How many executors there are in the middle of the run, and how many at its end; one at the beginning."""
WORKERS = CORES * MOST - 1
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": str(MOST),
    "spark.executor.cores": str(CORES),
    "spark.python.daemon.module": "sparkdl.daemon",
}
PACE = 6.0
"""How many times its processor time a worker takes: so two cores have room for seven."""
ENDLESS = 10_000
"""Epochs: the run is ended when enough is known of it."""
PATIENCE = 180.0
"""Seconds; a run that has not moved on for so long is lost."""


class CoursePoint(BaseModel):
    """What the driver knew at a moment."""

    at: float
    """By ``time.time``."""
    epoch: int
    rows: int
    """Of the epoch, that have been trained on."""


class Phase(BaseModel):
    """A time in which as many executors were there."""

    executors: int
    workers: int
    begin: float
    end: float


class Executors(BaseModel):
    """One run."""

    rows: int
    """Of the dataset."""
    counted: list[float]
    """Rows that servers have merged, in each epoch."""
    phases: list[Phase]
    """Between them executors come and go."""
    course: list[CoursePoint]

    def rows_between(self, begin: float, end: float) -> int:
        """How many rows were trained on."""
        known = [point.epoch * self.rows + point.rows for point in self.course if begin <= point.at <= end]
        return known[-1] - known[0] if known else 0

    def pause(self, begin: float, end: float) -> float:
        """The longest time in which no portion of the rows was finished, in seconds."""
        moments = [begin, *(point.at for point in self.course if begin < point.at < end), end]
        return max(after - before for before, after in pairwise(moments))


def measure(dataset: sparkdl.Dataset, settings: Mapping[str, Any], *, seconds: float) -> Executors:
    """Submit a run to a cluster of its own, and add and remove executors in the middle of epochs.

    It trains for so many seconds with each number of executors. Runs on the driver.
    """
    rows = dataset.rows("train")
    with (
        TemporaryDirectory() as name,
        standalone_cluster(Path(name), cores=(CORES,), pythonpath=IMPORTED_FROM) as cluster,
    ):
        run = _Run(cluster, Path(name), dataset, settings)
        run.wait_for(lambda: run.within_an_epoch(rows))
        phases = [run.phase(seconds)]
        for _ in range(MOST - 1):
            cluster.start_worker(CORES)
        run.wait_for(lambda: len(cluster.tasks("worker")) == WORKERS)
        phases.append(run.phase(seconds))
        run.wait_for(lambda: run.within_an_epoch(rows))
        run.remove(MOST - LEFT)
        phases.append(run.phase(seconds))
        begun = run.epoch
        run.wait_for(lambda: run.epoch > begun)
        return Executors(rows=rows, counted=run.counted(), phases=phases, course=run.course)


class _Run:
    """The run that was submitted, as it is seen from outside."""

    def __init__(
        self, cluster: StandaloneCluster, folder: Path, dataset: sparkdl.Dataset, settings: Mapping[str, Any]
    ) -> None:
        self._cluster, self._log = cluster, folder / "driver.log"
        self._notes = folder / "notes.jsonl"
        self._notes.touch()
        (folder / "run").mkdir()
        plan = {
            "dataset": dataset.path,
            "train": {**settings, "strategy": "downpour", "epochs": ENDLESS},
            "pace": PACE,
            "folder": str(folder / "run"),
            "notes": str(self._notes),
            "workers": WORKERS,
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        options = [part for item in DYNAMIC.items() for part in ("--conf", "=".join(item))]
        self.process = cluster.start(program_file, str(folder / "plan.json"), log=self._log, options=options)

    @property
    def course(self) -> list[CoursePoint]:
        """All that is known of it."""
        return [CoursePoint(**note) for note in self._read() if "at" in note]

    @property
    def epoch(self) -> int:
        """The one that is trained now, from 0; -1 before the first."""
        course = self.course
        return course[-1].epoch if course else -1

    def within_an_epoch(self, rows: int) -> bool:
        """Whether some of its rows have not been trained on yet."""
        course = self.course
        return bool(course) and course[-1].rows < rows

    def counted(self) -> list[float]:
        """The rows that servers have merged in each epoch that has ended."""
        return [note["counted"] for note in self._read() if "counted" in note]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return when it has come true. Raises RuntimeError when the run has ended, or moves no more."""
        moved, known = time.monotonic(), -1
        while not condition():
            notes = len(self._read())
            if notes != known:
                moved, known = time.monotonic(), notes
            ended = self.process.poll() is not None
            if ended or time.monotonic() > moved + PATIENCE:
                told = "ended too early" if ended else f"has not moved on for {PATIENCE:g} s"
                raise RuntimeError(f"the run {told}\n{self._log.read_text()[-6000:]}")
            time.sleep(0.1)

    def phase(self, seconds: float) -> Phase:
        """Let it train for a while; who is there at the end of it."""
        begin = time.time()
        self.wait_for(lambda: time.time() > begin + seconds)
        executors, workers = len(self._cluster.find("executor")), len(self._cluster.tasks("worker"))
        return Phase(executors=executors, workers=workers, begin=begin, end=time.time())

    def remove(self, count: int) -> None:
        """End so many of the cluster's hosts with their executors, but not the one with the server."""
        (server,) = self._cluster.tasks("server").values()
        needed = server.parents()
        others = [host for host in self._cluster.find("worker") if host not in needed]
        for host in others[:count]:
            for process in (*host.children(recursive=True), host):
                process.kill()

    def _read(self) -> list[dict[str, Any]]:
        lines = self._notes.read_text().split("\n")[:-1]  # the last one may not be whole yet
        return [json.loads(line) for line in lines]


def reports(found: Executors) -> list[Report]:
    """One table."""
    wrong = sum(rows != found.rows for rows in found.counted)
    still = sum(not found.rows_between(phase.begin, phase.end) for phase in found.phases)
    begin, end = found.phases[0].begin, found.phases[-1].end
    return [
        Report(
            title=f"asynchronous: executors come and go under dynamic allocation, {len(found.counted)} epochs of"
            f" {found.rows:,} rows of Fashion-MNIST",
            columns=["executors", "workers", "s", "rows/s", "longest s without a finished portion"],
            rows=[
                [
                    str(phase.executors),
                    str(phase.workers),
                    phase.end - phase.begin,
                    found.rows_between(phase.begin, phase.end) / (phase.end - phase.begin),
                    found.pause(phase.begin, phase.end),
                ]
                for phase in found.phases
            ],
            targets=[
                Target("executors in the middle", found.phases[1].executors, MOST),
                Target("executors at the end", found.phases[2].executors, LEFT, at_most=True),
                Target("epochs in which not every row counted once", wrong, 0, at_most=True),
                Target("numbers of executors with which no row was trained on", still, 0, at_most=True),
            ],
            note=f"A standalone cluster whose hosts, of {CORES} cores each, are started and killed while Downpour"
            f" trains with at most {WORKERS} workers and a server, whose host stays. In the whole run, the longest time"
            " without a finished portion is"
            f" {found.pause(begin, end):.1f} s, evaluations and checkpoints included.",
        )
    ]
