"""The examples of docs/recommenders.md, at a small size: from a table of clicks to vectors of users and items."""

import re
from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pytest
import yaml
from pyspark.sql import DataFrame, SparkSession

import sparkdl
from sparkdl import Cluster, Dataset, Prepare, Split, Tracking, Train, TrainedModel

PAGE = (Path(__file__).parents[2] / "docs" / "recommenders.md").read_text()
YAML = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
PYTHON = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
PREPARE, (DLRM, TOWERS) = YAML[0]["prepare"], [each["train"] for each in YAML[1:]]
SMALL = {10_000_000: 400, 1_000_000: 64}
"""Rows of the tables here, in place of those on the page."""
USERS, ITEMS, CLICKS = 30, 12, 1_200

Training = Callable[..., TrainedModel]


@pytest.fixture(scope="module")
def clicks(spark: SparkSession) -> DataFrame:
    """Users like the items of their own third, and are told by their names alone."""
    random = np.random.default_rng(0)
    pairs = zip(random.integers(0, USERS, CLICKS).tolist(), random.integers(0, ITEMS, CLICKS).tolist(), strict=True)
    countries = [None if user % 7 == 0 else "xyz"[user % 3] for user in range(USERS)]
    rows = [
        (f"user {u}", f"item {i}", countries[u], 20.0 + u, [u % 3, 3 + u % 2], random.random(), int(u % 3 == i % 3))
        for u, i in pairs
    ]
    schema = "user string, item string, country string, age double, visited array<int>, price double, clicked int"
    return spark.createDataFrame(rows, schema).cache()


@pytest.fixture(scope="module")
def dataset(clicks: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    inputs = {name: {**each} for name, each in PREPARE["inputs"].items()}
    for each in inputs.values():
        each["stages"] = [
            {**stage, "vocabulary": SMALL[stage["vocabulary"]]} if stage["kind"] == "hash" else stage
            for stage in each.get("stages", [])
        ]
    output = str(tmp_path_factory.mktemp("clicks") / "dataset")
    settings = {**PREPARE, "inputs": inputs, "output": output, "split": Split(fractions={"test": 0.2})}
    return sparkdl.prepare(clicks, Prepare.model_validate(settings))


@pytest.fixture(scope="module")
def training(
    dataset: Dataset, tmp_path_factory: pytest.TempPathFactory, empty_store: Path, spark: SparkSession
) -> Training:
    folder = tmp_path_factory.mktemp("runs")
    copy(empty_store, folder / "mlflow.db")

    def train(settings: dict[str, Any]) -> TrainedModel:
        own = {"epochs": 6, "batch_size": 32, "run_dir": str(folder / "runs"), **settings}
        tracking = Tracking(uri=f"sqlite:///{folder / 'mlflow.db'}")
        recipe = Train.model_validate(own)
        return sparkdl.train(dataset, recipe, cluster=Cluster(num_ranks=2), tracking=tracking, spark=spark)

    return train


def test_tables_have_the_rows_that_the_page_says(dataset: Dataset) -> None:
    sizes = {name: spec.vocabulary for name, spec in dataset.card.inputs.items() if spec.vocabulary}
    assert sizes == {"user": 400, "country": 4, "item": 64, "visited": 5}


def test_dlrm_learns_who_clicks_on_what_with_sparse_gradients_on_two_ranks(
    clicks: DataFrame, training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    trained = training(DLRM)
    assert not [text for text in caplog.messages if "sparse gradients" in text]
    assert trained.metrics["test_accuracy"] > 0.9
    found = sparkdl.score(clicks, trained).toPandas()
    assert (found.prediction == found.clicked).mean() > 0.9


def test_two_towers_make_vectors_by_which_items_are_found_for_users(clicks: DataFrame, training: Training) -> None:
    trained = training(TOWERS)
    assert trained.metrics["test_accuracy"] > 0.9
    names: dict[str, Any] = {"clicks": clicks, "trained": trained}
    exec(PYTHON[0], names)
    best = names["best"].toPandas()
    assert len(best) == USERS * ITEMS and len(best.item_vector[0]) == TOWERS["model_options"]["width"]
    suits = best.user.str.split().str[1].astype(int) % 3 == best.item.str.split().str[1].astype(int) % 3
    assert ((best.suits > 0) == suits).mean() > 0.9
