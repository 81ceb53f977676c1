"""The whole story on real data, from raw files to a column of predictions.

`make demo` runs it on Fashion-MNIST, where ranks train one network; `make demo-extreme` on WordNet, where independent
tasks train an ensemble of hashed meta-models, and one of them the same network with an output for every class.
"""

import shutil
import sys
import time
from pathlib import Path

import sparkdl

DATA = {"idx": "fashion-mnist", "wordnet": "wordnet"}
"""What to fetch, by the format of the configuration's source."""


def demo(configuration: str, overrides: list[str]) -> None:
    """Run the pipeline of one configuration and print a summary."""
    started = time.monotonic()
    settings = sparkdl.load_settings(configuration, overrides)
    source, output = settings.require("prepare.source"), settings.require("score.output")
    spark = sparkdl.get_session(settings.cluster)

    step("1/4  The raw files")
    sparkdl.fetch(DATA[source.format], Path(source.path))

    step("2/4  Prepare: raw rows into balanced row groups of Parquet")
    dataset = sparkdl.prepare(source, settings.require("prepare"), spark=spark)

    train = _ensemble if settings.require("prepare.sparse") else _network
    trained, lines = train(dataset, settings)

    step("4/4  Score the test rows with the registered model")
    rows = sparkdl.split_rows(sparkdl.open_source(source, spark), settings.require("prepare"), "test")
    scored = sparkdl.score(rows, trained, top_k=settings.score.top_k)
    if (Path(output) / "_SUCCESS").exists():  # what Spark wrote for a demo before this one, and no other folder
        shutil.rmtree(output)
    sparkdl.write_predictions(scored, output)
    predictions = spark.read.parquet(output)
    label = settings.require("prepare.label")
    right = predictions.where(f"prediction = {label}").count() / predictions.count()

    lines["model"] = f"models:/{settings.require('tracking.register_as')}@{settings.tracking.alias}"
    lines[""] = trained.registered.reason if trained.registered else ""
    lines["predictions"] = f"{output} ({right:.2%} of them are right)"
    lines["look at it"] = sparkdl.page_command(settings.tracking)
    seconds = time.monotonic() - started
    print(f"\n  {DATA[source.format]}, from raw files to a column of predictions, in {seconds:.0f} s\n")
    for name, text in lines.items():
        print(f"  {name:<16}" + text.replace("\n", f"\n{'':18}"))


def _network(dataset: sparkdl.Dataset, settings: sparkdl.Settings) -> tuple[sparkdl.TrainedModel, dict[str, str]]:
    """Train one network on several ranks."""
    step(f"3/4  Train: {settings.cluster.num_ranks} ranks in one barrier stage, then evaluate and register")
    trained = sparkdl.train(dataset, settings.train, cluster=settings.cluster, tracking=settings.tracking)
    return trained, {
        "test accuracy": f"{trained.metrics['test_accuracy']:.2%}",
        "training speed": f"{trained.rows_per_second:,.0f} images/s on {settings.cluster.num_ranks} ranks",
    }


def _ensemble(dataset: sparkdl.Dataset, settings: sparkdl.Settings) -> tuple[sparkdl.TrainedEnsemble, dict[str, str]]:
    """Train an ensemble, and beside it the same network with an output for every class."""
    extreme, tracking = settings.extreme, settings.tracking
    step(f"3/4  Train: {extreme.repetitions} repetitions, {extreme.repetitions_per_task} a task; evaluate and register")
    trained = sparkdl.train_extreme(dataset, extreme, cluster=settings.cluster, tracking=tracking)

    step("     One-vs-all with the same hidden layer and by the same recipe, to compare")
    changes = {
        "repetitions": 1,
        "minimum_repetitions": None,
        "hashing": "random",
        "hash_family": "identity",
        "buckets": dataset.num_classes,
        "ranker": "none",
    }
    unregistered = tracking.model_copy(update={"register_as": None})
    alone = sparkdl.Extreme(**extreme.model_dump() | changes)
    rival = sparkdl.train_extreme(dataset, alone, cluster=settings.cluster, tracking=unregistered)

    linear = trained.plan.one_vs_all[0]
    found = trained.evaluations["test"]
    table = [
        _line("", "parameters", "stored", "P@1", "P@3", "P@5", "trained in"),
        _line("this ensemble", *_figures(trained)),
        _line("one-vs-all", *_figures(rival)),
        _line(linear.name, f"{linear.parameters:,}", f"{linear.model_bytes / 1e6:,.0f} MB")
        + f"   not trained here; in float32 {linear.model_bytes / trained.model_bytes:,.0f} times the ensemble's bytes",
    ]
    return trained, {
        "compared": "\n".join(table),
        "unseen": f"{found.unseen_labels:,} of {found.labels:,} test labels never occur in training: all miss them",
    }


def _figures(trained: sparkdl.TrainedEnsemble) -> list[str]:
    precision = trained.evaluations["test"].precision
    size = [f"{trained.plan.mach.parameters:,}", f"{trained.model_bytes / 1e6:,.0f} MB"]
    return [*size, *(f"{precision[k - 1]:.2%}" for k in (1, 3, 5)), f"{trained.seconds:.0f} s"]


def _line(name: str, *figures: str) -> str:
    widths = (14, 10, 8, 8, 8, 12)
    return f"{name:<20}" + "".join(f"{figure:>{width}}" for figure, width in zip(figures, widths, strict=False))


def step(title: str) -> None:
    """A heading between the jobs' own output."""
    print(f"\n── {title}", flush=True)


if __name__ == "__main__":
    demo(sys.argv[1], sys.argv[2:])
