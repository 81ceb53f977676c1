"""``jobs/benchmark.py faults``: how runs end whose processes are killed and stopped."""

import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from pyspark.sql import SparkSession
from tqdm.auto import tqdm

import benchmarks
import sparkdl
from benchmarks.faults.injector import KINDS, LETTING_GO, SILENCE, Fault
from benchmarks.faults.scenario import EPOCHS, STEPS_PER_EPOCH, Scenario, Verdict
from benchmarks.images import session
from benchmarks.mlflow_server import Server
from benchmarks.ports import free_ports
from benchmarks.report import Report, Target
from benchmarks.standalone import standalone_cluster

__all__ = ["disturbed", "fault_bench", "run"]

ROWS = 400
FAULTS_PER_RUN = 8
CLASSES = 4
IMPORTED_FROM = f"{Path(sparkdl.__file__).parents[1]}{os.pathsep}{Path(benchmarks.__file__).parents[1]}"
"""Where the cluster's processes find what is submitted to them."""


def run(rounds: int = 100, seed: int = 0, backend: str = "auto") -> Report:
    """Inject at least so many faults, a few into each run; the seed decides which ones, and when.

    ``backend`` is by which library ranks exchange tensors.

    Runs on the driver. A run that comes to its end before its last faults leaves them to another run.
    """
    chance = random.Random(seed)
    verdicts: list[Verdict] = []
    with (
        tempfile.TemporaryDirectory(prefix="sparkdl-faults-") as folder,
        fault_bench(Path(folder), backend=backend) as bench,
        tqdm(total=rounds, unit="fault", disable=None) as bar,
    ):
        injected = 0
        while injected < rounds and all(verdict.finished for verdict in verdicts):
            steps = [chance.randrange(1, EPOCHS * STEPS_PER_EPOCH - 10) for _ in range(FAULTS_PER_RUN)]
            faults = [Fault(chance.choice(KINDS), step) for step in steps]
            verdicts.append(disturbed(bench, f"run-{len(verdicts)}", faults, seed=seed + len(verdicts)))
            injected += len(verdicts[-1].injections)
            bar.update(len(verdicts[-1].injections))
    return _report(verdicts, rounds, backend)


@contextmanager
def fault_bench(folder: Path, *, backend: str = "auto") -> Iterator[Scenario]:
    """A cluster of two executors, MLflow's server, a small dataset, and the run that was left alone."""
    with session() as spark:
        dataset = _dataset(spark, folder)
    (port,) = free_ports(1)
    server = Server(folder, port)
    server.start()
    try:
        with standalone_cluster(folder, pythonpath=IMPORTED_FROM) as cluster:
            server.wait()
            settings = {"backend": backend}
            bench = Scenario(cluster, dataset.path, dataset.rows("train"), folder / "undisturbed", server, settings)
            if not bench.run([]).finished:
                raise RuntimeError(
                    f"the run did not finish though it was left alone\n{bench.files.log.read_text()[-8000:]}"
                )
            yield bench
    finally:
        server.kill()


def disturbed(bench: Scenario, name: str, faults: list[Fault], *, seed: int = 0) -> Verdict:
    """A run like the one that was left alone, with faults; whether it ends with the same bits."""
    scenario = replace(bench, folder=bench.folder.parent / name)
    verdict = scenario.run(faults, seed=seed)
    return replace(verdict, identical=verdict.finished and _same(scenario.state(), bench.state()))


def _dataset(spark: SparkSession, folder: Path) -> sparkdl.Dataset:
    """Clouds of points; the first feature is the row's number."""
    chance = np.random.default_rng(0)
    labels = chance.integers(0, CLASSES, ROWS)
    points = chance.normal(size=(ROWS, CLASSES)) + 2 * np.eye(CLASSES)[labels]
    rows = [
        (number, *map(float, point), int(label))
        for number, (point, label) in enumerate(zip(points, labels, strict=True))
    ]
    schema = ", ".join(["number double", *(f"x{i} double" for i in range(CLASSES)), "label int"])
    frame = spark.createDataFrame([(float(number), *rest) for number, *rest in rows], schema)
    settings = sparkdl.Prepare(
        output=str(folder / "dataset"), split=sparkdl.Split(column=None, fractions={}), rows_per_group=50
    )
    return sparkdl.prepare(frame, settings, spark=spark)


def _same(one: object, other: object) -> bool:
    """Whether model, optimizer and each rank's own state are equal to the last bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        names = one.keys() & {"model", "optimizer", "ranks"} or one.keys()
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in names)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)


def _report(verdicts: list[Verdict], rounds: int, backend: str) -> Report:
    injections = [injection for verdict in verdicts for injection in verdict.injections]
    rows = []
    for kind in KINDS:
        found = [injection for injection in injections if injection.fault.kind == kind]
        if found:
            seconds = [
                [time for i in found if (time := getattr(i, name)) is not None]
                for name in ("detected", "ended", "recovered")
            ]
            rows.append([kind, str(len(found)), *(max(times) if times else "" for times in seconds)])
    finished = sum(verdict.finished for verdict in verdicts)
    return Report(
        title=f"faults: {len(injections)} injected into {len(verdicts)} runs of two ranks, backend {backend}",
        columns=["fault", "injected", "longest detection (s)", "longest ending (s)", "longest recovery (s)"],
        rows=rows,
        targets=[
            Target("faults injected", len(injections), rounds),
            Target("runs not finished", len(verdicts) - finished, 0, at_most=True),
            Target(
                "runs with other weights than the one left alone",
                sum(not v.identical for v in verdicts),
                0,
                at_most=True,
            ),
            Target("rows used more or less than once an epoch", sum(v.misused_rows for v in verdicts), 0, at_most=True),
            Target(
                "points missing or double in MLflow's curves", sum(v.curve_errors for v in verdicts), 0, at_most=True
            ),
            Target(
                "seconds until nothing of an attempt was left",
                max((i.ended for i in injections if i.ended is not None), default=0.0),
                LETTING_GO,
                at_most=True,
            ),
            Target("processes left over", sum(v.left_over for v in verdicts), 0, at_most=True),
        ],
        note="Detection: until the driver says that it tries again. Ending: until no rank of the attempt is left, and "
        f"not the victim, counted from the fault, or from the {SILENCE:g} s on that something stopped may be silent. "
        f"Recovery: until the next attempt's first batch. {sum(v.waiting for v in verdicts)} points of curves were on "
        "disk when their run was over, and `sparkdl sync` delivered them. Processes are counted as left over "
        f"{LETTING_GO:g} s after a run.",
    )
