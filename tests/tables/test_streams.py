"""New rows of Delta tables and of files, scored once each by a job that runs again and again."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import sparkdl
from sparkdl import pipeline
from sparkdl.errors import DataError
from sparkdl.settings import Settings

from .numbered_rows import rows

Job = Callable[..., str]
"""What a job tells of the rows that it has scored."""


@pytest.fixture(scope="module")
def tracking(folder: Path) -> sparkdl.Tracking:
    return sparkdl.Tracking(uri=f"sqlite:///{folder}/streams.db", spool=str(folder / "spool"))


@pytest.fixture(scope="module")
def model(spark: SparkSession, folder: Path, tracking: sparkdl.Tracking) -> str:
    split = sparkdl.Split(fractions={"test": 0.2})
    settings = sparkdl.Prepare(output=str(folder / "streamed"), features=["x"], split=split)
    dataset = sparkdl.prepare(rows(spark, 0, 100), settings, spark=spark)
    train = sparkdl.Train(epochs=1, run_dir=str(folder / "streamed-runs"))
    one = sparkdl.Cluster(num_ranks=1)
    return sparkdl.train(dataset, train, cluster=one, tracking=tracking, spark=spark).model_uri


@pytest.fixture
def job(model: str, tracking: sparkdl.Tracking, tmp_path: Path) -> Job:
    """Scores a stream into the folder ``out``, by the checkpoint ``checkpoint``."""

    def run(source: dict[str, Any], **score: Any) -> str:
        places = {"output": str(tmp_path / "out"), "checkpoint": str(tmp_path / "checkpoint"), "format": "delta"}
        settings = {"model": model, "source": source, "stream": True} | places | score
        return pipeline.score(Settings(score=settings, tracking=tracking))["rows"]

    return run


def found(spark: SparkSession, output: Path) -> dict[int, Any]:
    """The predictions by their rows' numbers, each of which is there once."""
    there = spark.read.format("delta").load(str(output)).collect()
    assert len({row.id for row in there}) == len(there)
    return {row.id: row for row in there}


def test_each_row_of_a_delta_table_is_scored_once_as_in_a_batch(
    spark: SparkSession, job: Job, model: str, tracking: sparkdl.Tracking, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    source = {"format": "delta", "path": table, "options": {"maxFilesPerTrigger": 1}}
    rows(spark, 0, 40).repartition(3).write.format("delta").save(table)
    assert job(source) == "40 new"
    rows(spark, 40, 20).write.format("delta").mode("append").save(table)
    assert job(source) == "20 new"
    assert job(source) == "0 new"
    batch = sparkdl.score(spark.read.format("delta").load(table), model, tracking=tracking).collect()
    assert found(spark, tmp_path / "out") == {row.id: row for row in batch}


def test_a_part_that_was_written_before_its_commit_was_lost_is_not_written_again(
    spark: SparkSession, job: Job, tmp_path: Path
) -> None:
    table = str(tmp_path / "table")
    rows(spark, 0, 40).write.format("delta").save(table)
    for mode in ("append", "merge"):
        place = {name: str(tmp_path / f"{mode}-{name}") for name in ("output", "checkpoint")}
        assert job({"format": "delta", "path": table}, **place, mode=mode, key="id") == "40 new"
        versions = spark.sql(f"DESCRIBE HISTORY delta.`{place['output']}`").count()
        for file in (tmp_path / f"{mode}-checkpoint" / "commits").iterdir():
            file.unlink()  # what a driver leaves that is killed between the two
        job({"format": "delta", "path": table}, **place, mode=mode, key="id")
        assert len(found(spark, tmp_path / f"{mode}-output")) == 40
        assert spark.sql(f"DESCRIBE HISTORY delta.`{place['output']}`").count() == versions


def test_predictions_follow_the_changes_of_a_table_by_their_key(spark: SparkSession, job: Job, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    changes = {"format": "delta", "path": table, "options": {"readChangeFeed": True}}
    kept = rows(spark, 0, 40).write.format("delta").option("delta.enableChangeDataFeed", "true")
    kept.save(table)
    assert job(changes, mode="merge", key="id") == "40 new"
    before = found(spark, tmp_path / "out")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id < 5")
    spark.sql(f"UPDATE delta.`{table}` SET x = -9 WHERE id = 7")
    spark.sql(f"UPDATE delta.`{table}` SET x = 9 WHERE id = 7")
    spark.sql(f"UPDATE delta.`{table}` SET id = 1008 WHERE id = 8")
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 9")
    rows(spark, 9, 1).write.format("delta").mode("append").save(table)
    assert job(changes, mode="merge", key="id") == "3 new"
    after = found(spark, tmp_path / "out")
    assert after.keys() == {*range(5, 40), 1008} - {8}
    assert after[7].x == 9 and after[7].probability != before[7].probability
    assert {number: row for number, row in after.items() if number not in (7, 1008)} == {
        number: row for number, row in before.items() if number in after and number != 7
    }
    assert "_change_type" not in after[5]


def test_a_batch_of_changes_is_merged_from_the_version_that_is_asked_for(
    spark: SparkSession, model: str, tracking: sparkdl.Tracking, tmp_path: Path
) -> None:
    table, output = str(tmp_path / "table"), str(tmp_path / "out")
    rows(spark, 0, 10).write.format("delta").option("delta.enableChangeDataFeed", "true").save(table)
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 3")

    def score(version: int) -> str:
        options = {"readChangeFeed": True, "startingVersion": version}
        source = {"format": "delta", "path": table, "options": options}
        settings = {"model": model, "source": source, "format": "delta", "output": output}
        return pipeline.score(Settings(score=settings | {"mode": "merge", "key": "id"}, tracking=tracking))["rows"]

    assert score(0) == "9"
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 4")
    spark.sql(f"UPDATE delta.`{table}` SET x = 9 WHERE id = 5")
    assert score(2) == "1"
    assert found(spark, tmp_path / "out").keys() == {0, 1, 2, 5, 6, 7, 8, 9}


def test_what_a_stream_of_a_table_cannot_follow_is_one_line(spark: SparkSession, job: Job, tmp_path: Path) -> None:
    table = str(tmp_path / "table")
    source = {"format": "delta", "path": table}
    rows(spark, 0, 40).write.format("delta").save(table)
    with pytest.raises(DataError, match="has not recorded its changes: ALTER TABLE"):
        job(source | {"options": {"readChangeFeed": True, "startingVersion": 0}}, checkpoint=str(tmp_path / "changes"))
    assert job(source) == "40 new"
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id < 5")
    with pytest.raises(DataError, match="were updated or deleted, which a stream of its rows cannot follow"):
        job(source)


def test_rows_are_streamed_into_a_table_of_iceberg(spark: SparkSession, job: Job, tmp_path: Path) -> None:
    name = "lake.shop.new_customers"
    rows(spark, 0, 20).writeTo(name).using("iceberg").create()
    source = {"format": "iceberg", "path": name}
    into = {"format": "iceberg", "output": "lake.shop.streamed"}
    assert job(source, **into) == "20 new"
    rows(spark, 20, 5).writeTo(name).append()
    assert job(source, **into) == "5 new"
    assert spark.table("lake.shop.streamed").select("id").distinct().count() == 25
