"""Precision, training time and size of the model: ours, the peers', and one-vs-all."""

from importlib.util import find_spec
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

import sparkdl
from benchmarks.extreme import rivals
from benchmarks.extreme.processes import alone
from benchmarks.extreme.task import Task
from benchmarks.report import Report, Target
from sparkdl.extreme.metrics import RankingMetrics
from sparkdl.tracking import download

__all__ = ["compare", "train_ours"]

CORES = 2
"""Threads of each rival; ours has as many slots."""
PEERS = {
    "omikuji (Parabel)": ("omikuji", rivals.omikuji),
    "napkinXC (PLT)": ("napkinxc", rivals.plt),
}
ASKED = (1, 3, 5)
MEGABYTE = 1e6


def train_ours(task: Task, folder: Path, spark: SparkSession) -> tuple[sparkdl.TrainedEnsemble, Path]:
    """Train, evaluate and log the ensemble as the demo does; the model's folder comes with the figures."""
    tracking = sparkdl.Tracking(uri=f"sqlite:///{folder}/mlflow.db")
    settings = task.settings.model_copy(update={"run_dir": str(folder / "repetitions")})
    ours = sparkdl.train_extreme(task.dataset, settings, tracking=tracking, spark=spark)
    return ours, download(ours.model_uri, tracking)


def compare(task: Task, ours: sparkdl.TrainedEnsemble, folder: Path) -> Report:
    """Train the others on the same rows, one after another, each in a process of its own. Runs on the driver."""
    test = ours.evaluations["test"]
    linear, *behind = ours.plan.one_vs_all
    rows: list[list[str | float]] = [_row(ours.plan.mach.name, test, ours.seconds, ours.model_bytes)]
    found = {}
    for name, (module, train) in PEERS.items():
        if find_spec(module) is None:
            rows.append([name, "not installed: pip install 'sparkdl-cluster[bench]'", *[""] * 6])
            continue
        place = folder / module
        place.mkdir()
        outcome = alone(train, task.dataset, place, CORES, log=folder / f"{module}.log")
        found[name] = task.evaluate(outcome.predicted)
        rows.append(_row(name, found[name], outcome.seconds, outcome.model_bytes))
    for cost, hidden in [(linear, []), *((each, task.settings.hidden) for each in behind)]:
        if (state := 3 * cost.model_bytes) > psutil.virtual_memory().total / 8:
            reason = f"not trained: weights and Adam's averages take {state / 1e9:.3g} GB"
            rows.append([cost.name, reason, *[""] * 5, cost.model_bytes / MEGABYTE])
            continue
        log = folder / "one_vs_all.log"
        trained = alone(rivals.one_vs_all, task.dataset, task.settings, hidden, CORES, log=log)
        if isinstance(trained, float):
            rows.append([cost.name, f"not trained: {trained:,.0f} s expected", *[""] * 5, cost.model_bytes / MEGABYTE])
        else:
            found[cost.name] = task.evaluate(trained.predicted)
            rows.append(_row(cost.name, found[cost.name], trained.seconds, cost.model_bytes))
    mine = test.precision
    targets = [
        Target(
            f"P@{k} less the best other's",
            100 * (mine[k - 1] - max(each.precision[k - 1] for each in found.values())),
            0,
        )
        for k in ASKED
        if found
    ]
    if task.is_wordnet:
        targets += [
            Target("P@1", 100 * mine[0], 40.0),
            Target("seconds of training", ours.seconds, 60, at_most=True),
        ]
    targets.append(Target("one-vs-all linear's size over the model's", linear.model_bytes / ours.model_bytes, 20))
    dataset = task.dataset
    return Report(
        title=f"extreme, quality: {task.name}, {dataset.rows('train'):,} rows, {dataset.num_classes:,} classes",
        columns=["method", *(f"P@{k}" for k in ASKED), *(f"nDCG@{k}" for k in (3, 5)), "training s", "model MB"],
        rows=rows,
        targets=targets,
        note=(
            f"{test.rows:,} test rows; {test.unseen_labels:,} of their {test.labels:,} labels never occur in training "
            f"and count as missed. Two slots or threads each. The plan expected {ours.plan.mach.seconds:.0f} s of "
            f"training. One-vs-all linear has {linear.parameters:,} parameters"
            + "".join(f", with the same hidden layer {each.parameters:,}" for each in behind)
            + f", ours {ours.plan.mach.parameters:,}."
        ),
        digits=4,
    )


def _row(name: str, found: RankingMetrics, seconds: float, model_bytes: int) -> list[str | float]:
    precisions = [100 * float(found.precision[k - 1]) for k in ASKED]
    gains = [100 * float(found.ndcg[k - 1]) for k in (3, 5)]
    return [name, *precisions, *gains, seconds, model_bytes / MEGABYTE]
