"""The same trials several at a time and one at a time, beside what the cores allow.

What they allow is measured by the same network's steps in plain processes without Spark, with one thread each: as many
steps in one process, and shared among as many processes as there are slots.
"""

import multiprocessing
import time
from statistics import median

import torch
from torch import nn

from benchmarks.report import Report, Target
from benchmarks.tune.searching import SLOTS, Place, place, search, spread
from sparkdl.models import networks

__all__ = ["run"]

TRIALS, PART, ROUNDS = 8, 0.1, 3
STEPS, ROWS = 240, 64


def run() -> Report:
    """Runs on the driver."""
    times: dict[int, list[float]] = {1: [], SLOTS: []}
    plain: dict[int, list[float]] = {1: [], SLOTS: []}
    with place(PART) as where:
        _search(where, SLOTS)  # which starts Python workers
        for _ in range(ROUNDS):
            for at_a_time in (1, SLOTS):
                times[at_a_time].append(_search(where, at_a_time))
                plain[at_a_time].append(_steps(at_a_time))
    faster = median(times[1]) / median(times[SLOTS])
    allowed = median(plain[1]) / median(plain[SLOTS])
    return Report(
        title=f"tune: {TRIALS} trials of the cnn, one rank each",
        columns=["at a time", "search s", "from", "to", f"{STEPS} plain steps s", "from", "to"],
        rows=[[str(name), *spread(each), *spread(plain[name])] for name, each in times.items()],
        targets=[Target(f"times faster, as a part of the {allowed:.2f} that the cores allow", faster / allowed, 0.9)],
        note=f"{faster:.2f} times faster; the median of {ROUNDS} rounds.",
    )


def _search(where: Place, at_a_time: int) -> float:
    train = {"model": "cnn", "batch_size": ROWS, "epochs": 1}
    tune = {"space": {"train.learning_rate": {"log": [1e-4, 1e-2]}}, "sampler": "random", "trials": TRIALS}
    return search(where, train=train, tune={**tune, "at_a_time": at_a_time}).seconds


def _steps(processes: int) -> float:
    """Seconds for all steps, shared among processes that have begun before."""
    start = multiprocessing.get_context("spawn")
    with start.Pool(processes, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        pool.map(_train, [2] * processes, chunksize=1)
        started = time.perf_counter()
        pool.map(_train, [STEPS // processes] * processes, chunksize=1)
        return time.perf_counter() - started


def _train(steps: int) -> None:
    """The network's steps on images that mean nothing."""
    network = networks.cnn(input_shape=(1, 28, 28), num_classes=10)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    images, labels = torch.rand(ROWS, 1, 28, 28), torch.randint(0, 10, (ROWS,))
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()
