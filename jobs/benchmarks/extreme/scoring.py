"""Rows a second from sparse rows to their five best classes."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import cycle, islice
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import sparkdl
from benchmarks.extreme.processes import servant
from benchmarks.extreme.task import Task
from benchmarks.report import Report, Target
from sparkdl.cluster import limited_threads, retained_memory
from sparkdl.data import SparseLoader
from sparkdl.extreme.decode import Decoder
from sparkdl.extreme.ensemble import Ensemble

__all__ = ["run"]

BOTH = "networks and decoding"
ALL = "networks, decoding and ranking"
PROCESSES = 2
K = 5
BATCH = 1024
BATCHES = 2
"""Batches that are scored over and over."""
LAPS = 3
"""Each way is measured so many times, in turn, after a lap that only warms up."""
SECONDS = 1.5
"""How long each way is measured in each lap."""


def run(task: Task, model: Path, folder: Path) -> Report:
    """Score test rows in two processes at the same time, as two slots do, with one thread each. Runs on the driver."""
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        servants = [
            stack.enter_context(servant(_measure_when_asked, task.dataset, model, log=folder / "scoring.log"))
            for _ in range(PROCESSES)
        ]
        (ways, *_) = [connection.recv() for connection in servants]
        for lap in range(1 + LAPS):
            for way in ways:
                for connection in servants:
                    connection.send(way)
                rate = sum(connection.recv() for connection in servants)
                if lap:
                    rates.setdefault(way, []).append(rate)
    found = {way: median(each) for way, each in rates.items()}
    return Report(
        title=f"extreme, scoring: the {K} best of {task.dataset.num_classes:,} classes, {PROCESSES} slots",
        columns=["step", "rows/s"],
        rows=[[way, found[way]] for way in ways],
        targets=[Target(f"{BOTH}, rows/s", found[BOTH], 20_000)],
        note=(
            f"Medians of {LAPS} laps of {SECONDS:g} s, the ways in turn; batches of {BATCH} rows, one thread a slot. "
            "Sums of logits put classes in the same order as the default, the mean log-probability; what it takes "
            "longer is the softmax over all buckets."
        ),
    )


def _measure_when_asked(connection: Connection, dataset: sparkdl.Dataset, model: Path) -> None:
    """Name the ways to score, then answer each name with the rows a second of that way."""
    ensemble = Ensemble.open(model)
    by_logits = _by_logits(ensemble)
    batches = list(islice(SparseLoader(dataset, "test", batch_size=BATCH, shuffle=False).epoch(0), BATCHES))
    with limited_threads(1), retained_memory():
        logits = [ensemble.logits(batch) for batch in batches]
        ways: dict[str, Callable[[int], object]] = {
            "networks alone": lambda i: ensemble.logits(batches[i]),
            BOTH: lambda i: ensemble.decode(ensemble.logits(batches[i]), K),
            ALL: lambda i: ensemble.top_k(batches[i], ensemble.logits(batches[i]), K),
            "decoding alone": lambda i: ensemble.decode(logits[i], K),
            "decoding alone, sums of logits": lambda i: by_logits.top_k(logits[i], K),
        }
        for way in ways.values():
            way(0)
        connection.send(list(ways))
        for name in iter(connection.recv, None):
            done, started = 0, time.perf_counter()
            for index in cycle(range(len(batches))):
                ways[name](index)
                done += logits[index].shape[1]
                if (took := time.perf_counter() - started) >= SECONDS:
                    break
            connection.send(done / took)


def _by_logits(ensemble: Ensemble) -> Decoder:
    return Decoder(ensemble.buckets, ensemble.card.labels.classes, estimator="sum_logits", counts=ensemble.label_counts)
