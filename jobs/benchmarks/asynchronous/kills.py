"""Random kills of workers and servers while they train: whether each run ends, and how often each row has counted."""

import logging
import random
import threading
from collections.abc import Mapping
from contextlib import suppress
from tempfile import TemporaryDirectory
from typing import Any, Self

import psutil
from pydantic import BaseModel
from pyspark.sql import SparkSession

import sparkdl
from benchmarks.report import Report, Target
from benchmarks.standalone import numbered_threads
from sparkdl.collectives import TorchBackend
from sparkdl.settings import RankRange
from sparkdl.training.asynchronous.driver import train_asynchronously
from sparkdl.training.asynchronous.line import Role
from sparkdl.training.job import Job

__all__ = ["Kills", "measure", "reports"]

log = logging.getLogger("sparkdl")

PAUSE = 0.3, 2.0
"""Seconds between two kills, at least and at most."""
RESTARTS = 20  # in a row without any progress: more kills than that would mean that nothing comes back


class Kill(BaseModel):
    """One process that was killed."""

    role: Role
    epoch: int
    """In which it was."""


class Run(BaseModel):
    """A run that has ended by itself."""

    kills: list[Kill]
    rows: list[float]
    """That servers have merged, in each epoch."""


class Kills(BaseModel):
    """All runs."""

    workers: int
    servers: int
    rows: int
    """Of the dataset."""
    runs: list[Run]

    def count(self, role: Role) -> int:
        """How many processes of a role were killed."""
        return sum(kill.role == role for run in self.runs for kill in run.kills)

    def merged(self, *, undisturbed: bool) -> list[float]:
        """The rows of the epochs in which, and in the one before, no server was killed; or of all others."""
        found = []
        for run in self.runs:
            disturbed = {kill.epoch + after for kill in run.kills if kill.role == "server" for after in (0, 1)}
            found += [rows for epoch, rows in enumerate(run.rows) if (epoch not in disturbed) == undisturbed]
        return found


def measure(
    spark: SparkSession,
    dataset: sparkdl.Dataset,
    settings: Mapping[str, Any],
    *,
    workers: int,
    servers: int,
    kills: int,
    seed: int = 0,
) -> Kills:
    """Train again and again until so many processes have been killed. Runs on the driver, over executors beside it."""
    found = Kills(workers=workers, servers=servers, rows=dataset.rows("train"), runs=[])
    chosen = sparkdl.Train(**{**settings, "strategy": "downpour", "checkpoint_steps": 20})
    cluster = sparkdl.Cluster(num_ranks=RankRange(max=workers), servers=servers, max_restarts=RESTARTS)
    chance = random.Random(seed)
    while (left := kills - found.count("worker") - found.count("server")) > 0:
        with TemporaryDirectory() as folder, _Killer(chance, left) as killer:
            result = train_asynchronously(
                Job(dataset, chosen, folder, TorchBackend(), workers),
                cluster,
                spark,
                on_message=killer.hear,
                on_checkpoint=lambda checkpoint: None,
            )
        found.runs.append(Run(kills=killer.kills, rows=[epoch["rows"] for epoch in result.history]))
    return found


class _Killer:
    """Kills a worker or a server now and then, from the first epoch on. Runs in a thread of the driver."""

    def __init__(self, chance: random.Random, most: int) -> None:
        self.kills: list[Kill] = []
        self._chance, self._most = chance, most
        self._epoch, self._over = -1, threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer")

    def hear(self, rank: int, message: Mapping[str, Any]) -> None:
        """Learn which epoch it is."""
        if message["kind"] == "epoch_started":
            self._epoch = message["epoch"]

    def __enter__(self) -> Self:
        self._level = log.level
        log.setLevel(logging.ERROR)  # each kill is a warning, which is what was asked for
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        log.setLevel(self._level)

    def _run(self) -> None:
        while len(self.kills) < self._most and not self._over.wait(self._chance.uniform(*PAUSE)):
            alive = _alive()
            if self._epoch >= 0 and alive:
                role, process = self._chance.choice(alive)
                with suppress(psutil.NoSuchProcess):
                    process.kill()
                    self.kills.append(Kill(role=role, epoch=self._epoch))


def _alive() -> list[tuple[Role, psutil.Process]]:
    """The processes that are workers or servers of this application."""
    roles: tuple[Role, ...] = ("worker", "server")
    with suppress(psutil.NoSuchProcess):  # one has ended while its children were counted
        processes = psutil.Process().children(recursive=True)
        return [(role, process) for process in processes for role in roles if numbered_threads(process, role)]
    return []


def reports(found: Kills) -> list[Report]:
    """One table."""
    workers, servers = found.count("worker"), found.count("server")
    alone, disturbed = found.merged(undisturbed=True), found.merged(undisturbed=False)
    missing = sum(rows < found.rows for rows in alone)
    too_many = sum(rows > found.rows for rows in alone + disturbed)
    lost = 1 - sum(disturbed) / (len(disturbed) * found.rows) if disturbed else 0.0
    return [
        Report(
            title=f"asynchronous: {workers + servers} random kills of workers and servers",
            columns=["epochs", "count", "rows that count, of each epoch's"],
            rows=[
                ["of servers left alone", str(len(alone)), f"{min(alone, default=0):g} to {max(alone, default=0):g}"],
                ["in or after which a server was killed", str(len(disturbed)), f"all but {lost:.2%}"],
            ],
            targets=[
                Target("kills", workers + servers, 100),
                Target("epochs of servers left alone that miss a row", missing, 0, at_most=True),
                Target("epochs with a row too many", too_many, 0, at_most=True),
            ],
            note=f"{len(found.runs)} runs of Downpour, which all ended by themselves, on {found.rows:,} rows of"
            f" Fashion-MNIST; {workers} workers and {servers} servers were killed. A server comes back from its last"
            " checkpoint: what was pushed to it since is lost.",
        )
    ]
