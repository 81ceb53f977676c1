"""A network's lighter forms beside the network itself: rows per second on one thread, points lost, and bytes.

Networks are trained on Fashion-MNIST, and a small transformer on WordNet's glosses, of which it tells the
lexicographer's category. ``sparkdl.compress`` makes the forms, which may lose as much on ``validation`` as its gate
allows by default; what they lose is measured here on ``test``, which nothing has seen. Forms take turns in one process,
through what a scoring task calls. WordNet's ensemble comes behind the networks.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import pyarrow as pa
import torch
from pyspark.sql import DataFrame, SparkSession

import sparkdl
from benchmarks.images import fashion_mnist, session
from benchmarks.lighter_ensemble import measure_ensemble
from benchmarks.report import Report, Target
from benchmarks.turns import seconds_in_turn
from sparkdl.data.model_card import ModelCard
from sparkdl.scoring.predictor import Predictor
from sparkdl.scoring.raw_inputs import RawInputs
from sparkdl.tracking import download

__all__ = ["run"]

EPOCHS = {"mlp": 8, "cnn": 4, "resnet": 2, "texts": 1}
IMAGES_PART, TEXTS_PART = 1 / 6, 1 / 5
"""Of the images and glosses: enough to learn from, for networks that are to be compared with themselves."""
HELD_OUT = 3_000
"""Rows of ``test``."""
TIMED_ROWS = {"mlp": 3_000, "cnn": 3_000, "resnet": 500, "texts": 500}
ROUNDS = 9
WORDNET = Path("output/raw/wordnet")
BERT = {"model_type": "bert", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4}
BERT |= {"intermediate_size": 1024, "max_position_embeddings": 64}


@dataclass(frozen=True)
class Bars:
    """What the form int8 must reach."""

    rate: float
    """Over the original's."""
    size: float
    """Part of the original's bytes."""
    points: float = 0.5
    """That it may lose."""


OF_IMAGES, OF_TEXTS = Bars(3.0, 0.28), Bars(2.0, 0.3)


PARTS = "networks", "ensemble"
"""What there is to measure."""


def run(*, parts: Sequence[str] = ()) -> list[Report]:
    """Train, make forms and measure them, by default of both parts. Runs on the driver."""
    if unknown := set(parts) - set(PARTS):
        raise click.UsageError(f"forms has no part {min(unknown)}; it has {', '.join(PARTS)}")
    sparkdl.fetch("wordnet", WORDNET)
    with session() as spark, TemporaryDirectory() as folder:
        measures: dict[str, Callable[[], Report]] = {
            "networks": lambda: _networks(spark, folder),
            "ensemble": lambda: measure_ensemble(spark, folder, WORDNET),
        }
        return [measures[part]() for part in parts or PARTS]


def _networks(spark: SparkSession, folder: str) -> Report:
    rows: list[list[str | float]] = []
    targets: list[Target] = []
    store = sparkdl.Tracking(uri=f"sqlite:///{folder}/mlflow.db", spool=f"{folder}/spool")
    for name, dataset, train, held_out in _tasks(spark, folder):
        tracking = store.model_copy(update={"register_as": name})
        cluster = sparkdl.Cluster(num_ranks=2)
        trained = sparkdl.train(dataset, train, cluster=cluster, tracking=tracking, spark=spark)
        settings = sparkdl.Compress(run_dir=f"{folder}/runs")
        made = sparkdl.compress(trained, settings, dataset=dataset, spark=spark)
        model = download(made.model_uri, tracking)
        measured = _measure(model, ["original", *made.forms], held_out, TIMED_ROWS[name])
        own = measured["original"]
        for form, found in measured.items():
            how = made.forms[form].made if form in made.forms else ""
            size = made.forms[form].bytes / made.forms[form].original_bytes if form in made.forms else 1.0
            ratios = [a / b for a, b in zip(own.seconds, found.seconds, strict=True)]
            ratio, rate = median(ratios), TIMED_ROWS[name] / median(found.seconds)
            told = f"{ratio:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            rows.append([name, form, rate, told, found.points, own.points - found.points, size, how])
            if form == "int8":
                bars = OF_TEXTS if name == "texts" else OF_IMAGES
                targets += [
                    Target(f"{name}: int8's rows/s over the original's", ratio, bars.rate),
                    Target(f"{name}: points that int8 loses", own.points - found.points, bars.points, at_most=True),
                    Target(f"{name}: int8's part of the bytes", size, bars.size, at_most=True),
                ]
        rows += [[name, form, "", "", "", "", "", f"left out: {reason}"] for form, reason in made.left_out.items()]
    return Report(
        title="forms: one thread, through the predictor of a scoring task",
        columns=["network", "form", "rows/s", "ratio", "test accuracy", "points lost", "bytes", "made"],
        rows=rows,
        targets=targets,
        note=f"Medians of {ROUNDS} rounds after a warm-up, taken in turn; ratio of each pair, with the least and the"
        f" most. Accuracy on {HELD_OUT:,} rows or fewer. Bytes are a part of the original's.",
    )


@dataclass(frozen=True)
class Found:
    """What was measured of a form."""

    seconds: list[float]
    points: float


def _measure(folder: Path, names: Sequence[str], held_out: pa.Table, timed: int) -> dict[str, Found]:
    """Each form's seconds for so many rows, round by round, and its accuracy in points on all of them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        card = ModelCard.load(folder)
        raw = RawInputs.open(folder, card)
        columns = {name: held_out.column(name).combine_chunks() for name in card.raw_columns}
        inputs = raw.read(columns).column
        some = inputs.slice(0, timed)
        forms = {form: Predictor.load(folder, form=form) for form in names}  # type: ignore[arg-type]
        ways = {form: lambda predictor=predictor: predictor.answer(some) for form, predictor in forms.items()}
        seconds = seconds_in_turn(ways, ROUNDS)
        labels = np.array([str(label) for label in held_out.column("label").to_pylist()])
        found = {}
        for form, predictor in forms.items():
            predicted = np.array([str(label) for label in predictor.answer(inputs)[0].to_pylist()])
            found[form] = Found(seconds[form], 100 * float(np.mean(predicted == labels)))
        return found
    finally:
        torch.set_num_threads(threads)


def _tasks(spark: SparkSession, folder: str) -> Iterator[tuple[str, sparkdl.Dataset, sparkdl.Train, pa.Table]]:
    """Of each network: its name, dataset, training, and rows of ``test``."""
    dataset = fashion_mnist(spark, f"{folder}/images", fractions={"validation": 0.1}, num_ranks=2, part=IMAGES_PART)
    source = sparkdl.Source(format="idx", path="output/raw/fashion-mnist")
    images = _table(sparkdl.open_source(source, spark).where("split = 'test'").select("image", "label").limit(HELD_OUT))
    for model in ("mlp", "cnn", "resnet"):
        yield model, dataset, sparkdl.Train(model=model, epochs=EPOCHS[model], run_dir=f"{folder}/runs"), images
    source = sparkdl.Source(format="wordnet", path=str(WORDNET))
    glosses = (
        sparkdl.open_source(source, spark).where(f"rand(0) < {TEXTS_PART}").selectExpr("gloss", "category AS label")
    )
    glosses = glosses.cache()
    words = {"column": "gloss", "kind": "tokens", "vocabulary": 8000, "max_length": 64, "on_long_rows": "cut"}
    prepare: dict[str, Any] = {
        "output": f"{folder}/texts",
        "label": "label",
        "inputs": {"input_ids": words},
        "split": {"fractions": {"validation": 0.05, "test": 0.1}},
        "num_ranks": 2,
    }
    settings = sparkdl.Prepare.model_validate(prepare)
    texts = sparkdl.prepare(glosses, settings, spark=spark)
    train = sparkdl.Train(
        model="transformers:AutoModelForSequenceClassification",
        model_options={"config": BERT},
        optimizer="adamw",
        learning_rate=1e-3,
        batch_size=32,
        epochs=EPOCHS["texts"],
        run_dir=f"{folder}/runs",
    )
    yield "texts", texts, train, _table(sparkdl.split_rows(glosses, settings, "test").limit(HELD_OUT))


def _table(rows: DataFrame) -> pa.Table:
    return pa.Table.from_pandas(rows.toPandas(), preserve_index=False)
