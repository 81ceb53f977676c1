"""Real tables of Delta Lake and Iceberg: which version a model was trained from, and predictions that are added."""

from pathlib import Path

import pytest
from mlflow import MlflowClient
from pyspark.sql import SparkSession

import sparkdl

from .numbered_rows import rows

ICEBERG = "lake.shop.customers"


@pytest.fixture(scope="module")
def delta(spark: SparkSession, folder: Path) -> str:
    """A Delta table with three versions, of 40, 80 and 120 rows."""
    path = str(folder / "delta")
    for begin in (0, 40, 80):
        rows(spark, begin, 40).write.format("delta").mode("append").save(path)
    return path


@pytest.fixture(scope="module")
def iceberg(spark: SparkSession) -> list[int]:
    """The snapshots of an Iceberg table, of 40, 80 and 120 rows."""
    rows(spark, 0, 40).writeTo(ICEBERG).using("iceberg").create()
    for begin in (40, 80):
        rows(spark, begin, 40).writeTo(ICEBERG).append()
    history = spark.sql(f"SELECT snapshot_id FROM {ICEBERG}.history ORDER BY made_current_at")
    return [row["snapshot_id"] for row in history.collect()]


def prepared(spark: SparkSession, folder: Path, source: sparkdl.Source) -> sparkdl.Dataset:
    number = len(list(folder.glob("dataset-*")))
    settings = sparkdl.Prepare(
        source=source,
        output=str(folder / f"dataset-{number}"),
        features=["x"],
        split=sparkdl.Split(fractions={"test": 0.2}),
    )
    return sparkdl.prepare(None, settings, spark=spark)


def count(dataset: sparkdl.Dataset) -> int:
    return sum(dataset.rows(split) for split in dataset.splits)


@pytest.mark.parametrize(("options", "version"), [({}, 2), ({"versionAsOf": 0}, 0), ({"versionasof": "1"}, 1)])
def test_a_dataset_says_which_version_of_a_delta_table_it_was_made_of(
    spark: SparkSession, folder: Path, delta: str, options: dict[str, str | int], version: int
) -> None:
    dataset = prepared(spark, folder, sparkdl.Source(format="delta", path=delta, options=options))
    assert count(dataset) == 40 * (version + 1)
    assert dataset.named["dataset_table"] == f"delta {delta}, version {version}"


def test_a_time_chooses_the_version_that_was_there_then(spark: SparkSession, folder: Path, delta: str) -> None:
    history = spark.sql(f"DESCRIBE HISTORY delta.`{delta}`").where("version = 1")
    (row,) = history.selectExpr("date_format(timestamp, 'yyyy-MM-dd HH:mm:ss.SSS') AS time").collect()
    source = sparkdl.Source(format="delta", path=delta, options={"timestampAsOf": row["time"]})
    dataset = prepared(spark, folder, source)
    assert count(dataset) == 80
    assert dataset.named["dataset_table"].endswith("version 1")


def test_a_table_of_the_catalog_has_a_version_as_well(spark: SparkSession, folder: Path, delta: str) -> None:
    spark.read.format("delta").load(delta).write.format("delta").saveAsTable("customers")
    dataset = prepared(spark, folder, sparkdl.Source(format="table", path="customers"))
    assert dataset.named["dataset_table"] == "delta customers, version 0"


def test_a_dataset_says_which_snapshot_of_an_iceberg_table_it_was_made_of(
    spark: SparkSession, folder: Path, iceberg: list[int]
) -> None:
    newest = prepared(spark, folder, sparkdl.Source(format="iceberg", path=ICEBERG))
    options: dict[str, str | int | float | bool] = {"snapshot-id": iceberg[0]}
    first = prepared(spark, folder, sparkdl.Source(format="iceberg", path=ICEBERG, options=options))
    named = prepared(spark, folder, sparkdl.Source(format="table", path=ICEBERG))
    assert (count(newest), count(first), count(named)) == (120, 40, 120)
    assert newest.named["dataset_table"] == f"iceberg {ICEBERG}, snapshot {iceberg[-1]}"
    assert first.named["dataset_table"] == f"iceberg {ICEBERG}, snapshot {iceberg[0]}"
    assert named.digest == newest.digest


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_run_records_its_table_and_predictions_are_added_and_replaced_there(
    spark: SparkSession, folder: Path, delta: str, iceberg: list[int], format: str
) -> None:
    tracking = sparkdl.Tracking(uri=f"sqlite:///{folder}/mlflow.db", spool=str(folder / "spool"))
    dataset = prepared(spark, folder, sparkdl.Source(format=format, path=delta if format == "delta" else ICEBERG))
    trained = sparkdl.train(
        dataset,
        sparkdl.Train(epochs=1, run_dir=str(folder / "runs")),
        cluster=sparkdl.Cluster(num_ranks=1),
        tracking=tracking,
        spark=spark,
    )
    params = MlflowClient(tracking.uri).get_run(trained.run_id).data.params
    assert params["dataset_table"] == dataset.named["dataset_table"]
    output = str(folder / "predictions") if format == "delta" else "lake.shop.predictions"

    def write(begin: int, mode: str) -> int:
        scored = sparkdl.score(rows(spark, begin, 40).drop("label"), trained)
        sparkdl.write_predictions(scored, output, format=format, mode=mode, key="id")
        there = spark.read.format(format).load(output)
        assert there.select("id").distinct().count() == (there.count() if mode != "append" else 60)
        return there.count()

    assert write(0, "error") == 40
    assert write(20, "merge") == 60
    assert write(20, "append") == 100
