"""Extreme classification on a real Spark: independent tasks, nothing shuffled, nothing trained twice."""

from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from pyspark.sql import DataFrame, SparkSession

from sparkdl import Extreme, Prepare, Split, Stage, prepare, train_extreme
from sparkdl.data import Dataset
from sparkdl.errors import ConfigError, DatasetError

SETTINGS = {"buckets": 8, "repetitions": 4, "repetitions_per_task": 2, "hidden": [16], "epochs": 20, "batch_size": 16}


def texts(spark: SparkSession, classes: int) -> DataFrame:
    """Each class has a word of its own, in twelve texts beside words that say nothing."""
    rows = [
        ("test" if copy == 0 else "train", f"word{number} noise{copy} noise{(number + copy) % 7}", f"class{number}")
        for number in range(classes)
        for copy in range(12)
    ]
    return spark.createDataFrame(rows, "part string, text string, label string")


def make(spark: SparkSession, folder: Path, *, classes: int = 40, sparse: bool = True) -> Dataset:
    settings = Prepare(
        output=str(folder),
        features=["text"],
        stages=[Stage(kind="count_text" if sparse else "hash_text", columns=["text"], dimensions=64)],
        sparse=sparse,
        num_ranks=1,
        split=Split(column="part", fractions={}),
    )
    return prepare(texts(spark, classes), settings, spark=spark)


def stages(spark: SparkSession) -> list[Any]:
    """Spark's own records of the stages so far, the latest first."""
    context = spark.sparkContext
    jvm: Any = context._jvm
    none = context._gateway.new_array(jvm.double, 0)  # type: ignore[union-attr]
    found = context._jsc.sc().statusStore().stageList(None, False, False, none, jvm.java.util.ArrayList())
    return [found.apply(index) for index in range(found.size())]


@pytest.fixture(autouse=True)
def tracking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty tracking store for each test."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    return uri


@pytest.fixture(scope="module")
def dataset(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make(spark, tmp_path_factory.mktemp("extreme") / "dataset")


def test_an_ensemble_learns_finds_damage_and_never_trains_twice(
    spark: SparkSession, dataset: Dataset, tmp_path: Path
) -> None:
    settings = Extreme(run_dir=str(tmp_path / "run"), **SETTINGS)
    trained = train_extreme(dataset, settings, spark=spark)
    assert trained.evaluations["test"].precision[0] > 0.9
    assert [record.repetition for record in trained.repetitions] == [0, 1, 2, 3]
    assert all(record.losses[-1] < record.losses[0] for record in trained.repetitions)

    before = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "run").iterdir()}
    weights = tmp_path / "run" / "repetition-0002.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    more = train_extreme(dataset, settings.model_copy(update={"repetitions": 5}), spark=spark)
    after = {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in (tmp_path / "run").iterdir()}
    assert {name for name in before if before[name] != after[name]} == {
        "repetition-0002.safetensors",
        "repetition-0002.json",
    }
    assert after.keys() - before.keys() == {"repetition-0004.safetensors", "repetition-0004.json"}
    assert more.evaluations["test"].precision[0] > 0.9


def test_one_run_holds_a_run_for_each_repetition(
    spark: SparkSession, dataset: Dataset, tmp_path: Path, tracking: str
) -> None:
    trained = train_extreme(dataset, Extreme(run_dir=str(tmp_path / "run"), **SETTINGS), spark=spark)
    client = MlflowClient(tracking)
    parent = client.get_run(trained.run_id)
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["test_precision_at_1"] == pytest.approx(trained.evaluations["test"].precision[0])
    by_repetitions = client.get_metric_history(trained.run_id, "test_precision_at_1")
    assert {1, 2, 4} <= {metric.step for metric in by_repetitions}
    assert "precision_test.png" in {entry.path for entry in client.list_artifacts(trained.run_id)}
    experiments = [parent.info.experiment_id]
    children = client.search_runs(experiments, f"tags.`mlflow.parentRunId` = '{trained.run_id}'")
    assert sorted(child.info.run_name for child in children) == [f"repetition {number}" for number in range(4)]
    for child in children:
        assert len(client.get_metric_history(child.info.run_id, "loss")) == SETTINGS["epochs"]
        assert child.data.metrics["rows_per_second"] > 0
        assert child.data.tags["host"]


def test_weights_do_not_depend_on_order_or_place(spark: SparkSession, dataset: Dataset, tmp_path: Path) -> None:
    first = train_extreme(dataset, Extreme(run_dir=str(tmp_path / "a"), **SETTINGS), spark=spark)
    second = train_extreme(dataset, Extreme(run_dir=str(tmp_path / "b"), **SETTINGS), spark=spark)
    assert [record.sha256 for record in first.repetitions] == [record.sha256 for record in second.repetitions]


def test_nothing_is_shuffled_and_no_stage_is_a_barrier(dataset: Dataset, tmp_path: Path, spark: SparkSession) -> None:
    known = len(stages(spark))
    train_extreme(dataset, Extreme(run_dir=str(tmp_path), **SETTINGS), spark=spark)
    new = stages(spark)[:-known]
    assert len(new) == 2
    assert all(stage.numTasks() == 1 for stage in new)
    assert all(stage.shuffleReadBytes() == 0 and stage.shuffleWriteBytes() == 0 for stage in new)


def test_more_buckets_than_classes_are_warned_of_and_one_class_is_refused(
    spark: SparkSession, dataset: Dataset, tmp_path: Path
) -> None:
    settings = Extreme(run_dir=str(tmp_path / "run"), **(SETTINGS | {"buckets": 64, "repetitions": 1, "epochs": 1}))
    with pytest.warns(UserWarning, match="hashing buys nothing"):
        train_extreme(dataset, settings, spark=spark)
    single = make(spark, tmp_path / "single", classes=1)
    with pytest.raises(ConfigError, match="single class"):
        train_extreme(single, settings, spark=spark)


def test_a_dataset_that_is_not_sparse_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    dense = make(spark, tmp_path / "dense", sparse=False)
    with pytest.raises(DatasetError, match=r"prepare\.sparse: true"):
        train_extreme(dense, Extreme(run_dir=str(tmp_path)), spark=spark)


def test_no_repetitions_are_a_clear_error() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        Extreme(repetitions=0)
