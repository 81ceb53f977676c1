"""Precision, training time, size of the model and scoring: ours, the peers', and one-vs-all."""

import time
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

import sparkdl
from benchmarks.extreme import rivals
from benchmarks.extreme.environments import ENVIRONMENTS
from benchmarks.extreme.processes import alone, cpu_seconds
from benchmarks.extreme.task import Task
from benchmarks.report import Report, Target
from sparkdl.cluster import limited_threads, retained_memory
from sparkdl.data import SparseLoader
from sparkdl.extreme.ensemble import Ensemble
from sparkdl.extreme.metrics import RankingMetrics
from sparkdl.tracking import download

__all__ = ["compare", "train_ours"]

CORES = 2
"""Threads of each rival; ours has as many slots."""
BASELINE = "omikuji, cluster_k = 100"
"""Whose training time is the measure of ours."""
BEHIND = 0.1
"""Points by which the best of the others may be ahead."""
ASKED = (1, 3, 5)
MEGABYTE = 1e6


def train_ours(task: Task, folder: Path, spark: SparkSession) -> tuple[sparkdl.TrainedEnsemble, Path, float]:
    """Train, evaluate and log the ensemble as the demo does; its figures, its folder, and what it spent on CPUs."""
    tracking = sparkdl.Tracking(uri=f"sqlite:///{folder}/mlflow.db")
    settings = task.settings.model_copy(update={"run_dir": str(folder / "repetitions")})
    before = cpu_seconds()
    ours = sparkdl.train_extreme(task.dataset, settings, tracking=tracking, spark=spark)
    return ours, download(ours.model_uri, tracking), cpu_seconds() - before


def compare(task: Task, ours: sparkdl.TrainedEnsemble, model: Path, spent: float, folder: Path) -> Report:
    """Train the others on the same rows, one after another, each in a process of its own. Runs on the driver."""
    log = folder / "rivals.log"
    name = f"{ours.plan.mach.name}, ranked" if task.settings.ranker.kind != "none" else ours.plan.mach.name
    rate = alone(scoring_rate, task.dataset, model, CORES, log=log)
    rows = [_row(name, ours.evaluations["test"], ours.seconds, spent, ours.model_bytes, rate)]
    found: dict[str, RankingMetrics] = {}
    seconds = {}
    rivals.write_rows(task.dataset, folder)
    for peer in ENVIRONMENTS:
        outcome = rivals.peer(peer, folder, CORES)
        if isinstance(outcome, str):
            rows.append(_without(peer, outcome))
            continue
        found[peer], seconds[peer] = task.evaluate(outcome.predicted), outcome.seconds
        figures = outcome.seconds, outcome.cpu_seconds, outcome.model_bytes, outcome.rows_per_second
        rows.append(_row(peer, found[peer], *figures))
    linear, *behind = ours.plan.one_vs_all
    for cost, hidden in [(linear, []), *((each, task.settings.hidden) for each in behind)]:
        if (state := 3 * cost.model_bytes) > psutil.virtual_memory().total / 8:
            rows.append(_without(cost.name, f"not trained: weights and averages take {state / 1e9:.3g} GB"))
            continue
        trained = alone(rivals.one_vs_all, task.dataset, task.settings, hidden, CORES, log=log)
        if isinstance(trained, float):
            rows.append(_without(cost.name, f"not trained: {trained:,.0f} s expected"))
            continue
        found[cost.name] = task.evaluate(trained.predicted)
        figures = trained.seconds, trained.cpu_seconds, cost.model_bytes, trained.rows_per_second
        rows.append(_row(cost.name, found[cost.name], *figures))
    test = ours.evaluations["test"]
    targets = [
        Target(
            f"P@{k} less the best other's",
            100 * (test.precision[k - 1] - max(each.precision[k - 1] for each in found.values())),
            -BEHIND,
        )
        for k in ASKED
        if found
    ]
    if BASELINE in seconds:
        targets.append(Target(f"training over {BASELINE}'s", ours.seconds / seconds[BASELINE], 1.1, at_most=True))
    targets.append(Target("the plan's seconds over those taken", ours.plan.seconds / ours.seconds, 0.7))
    targets.append(Target("the plan's seconds over those taken", ours.plan.seconds / ours.seconds, 1.3, at_most=True))
    dataset = task.dataset
    return Report(
        title=f"extreme, quality: {task.name}, {dataset.rows('train'):,} rows, {dataset.num_classes:,} classes",
        columns=[
            "method",
            *(f"P@{k}" for k in ASKED),
            *(f"PSP@{k}" for k in ASKED),
            "training s",
            "CPU s",
            "model MB",
            "scored rows/s",
        ],
        rows=rows,
        targets=targets,
        note=(
            f"{test.rows:,} test rows; {test.unseen_labels:,} of their {test.labels:,} labels never occur in training "
            f"and count as missed. Classes are numbered at random. Two slots or threads each; our CPU "
            f"seconds include the evaluation. One-vs-all linear has "
            f"{linear.parameters:,} parameters"
            + "".join(f", with the same hidden layer {each.parameters:,}" for each in behind)
            + f", ours {ours.plan.mach.parameters:,}."
        ),
        digits=4,
    )


def scoring_rate(dataset: sparkdl.Dataset, model: Path, threads: int) -> float:
    """Test rows a second from sparse rows to their best classes. Runs in a process of its own."""
    ensemble = Ensemble.open(model)
    with limited_threads(threads), retained_memory():
        for _ in range(2):  # the first time compiles loops and reads files
            started = time.perf_counter()
            for batch in SparseLoader(dataset, "test", batch_size=1024, shuffle=False).epoch(0):
                ensemble.top_k(batch, ensemble.logits(batch), rivals.K)
            seconds = time.perf_counter() - started
    return dataset.rows("test") / seconds


def _row(
    name: str, found: RankingMetrics, seconds: float, spent: float, model_bytes: int, rate: float
) -> list[str | float]:
    measures = [found.precision, found.propensity_scored_precision]
    points = [100 * float(measure[k - 1]) for measure in measures if measure is not None for k in ASKED]
    return [name, *points, seconds, spent, model_bytes / MEGABYTE, rate]


def _without(name: str, reason: str) -> list[str | float]:
    return [name, reason, *[""] * 9]
