"""S3 by Spark and by Python at once: a row's whole way, and a store that is away for a while."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from pyspark.sql import SparkSession

from sparkdl import Cluster, Dataset, Prepare, Settings, Tracking, Train, get_session, pipeline
from sparkdl.errors import StorageError
from sparkdl.settings import Score

from ..s3_server import S3Server

ROWS = 400
RAW, DATASET, RUNS, PREDICTIONS = (f"s3a://tests/{name}" for name in ("raw", "dataset", "runs", "predictions"))


@pytest.fixture
def raw(spark: SparkSession, s3: S3Server) -> str:
    """A table of two numbers and whether their sum is positive, written by Spark."""
    numbers = np.random.default_rng(0).normal(size=(ROWS, 2))
    rows = [(number, *map(float, row), int(sum(row) > 0)) for number, row in enumerate(numbers)]
    spark.createDataFrame(rows, "id long, a double, b double, label int").write.parquet(RAW)
    return RAW


@pytest.fixture
def settings(raw: str, tmp_path: Path) -> Settings:
    return Settings(
        prepare=Prepare(source=source(raw), features=["a", "b"], label="label", output=DATASET),
        train=Train(dataset=DATASET, model="mlp", epochs=2, batch_size=16, run_dir=RUNS),
        score=Score(model="models:/sums@candidate", source=source(raw), output=PREDICTIONS),
        tracking=Tracking(uri=f"sqlite:///{tmp_path}/mlflow.db", register_as="sums"),
    )


def source(path: str) -> Any:
    return {"format": "parquet", "path": path}


def names(path: str) -> Iterator[str]:
    return (name.rpartition("/")[2] for name in fsspec.filesystem("s3", use_listings_cache=False).find(path))


def test_rows_go_from_a_table_on_s3_to_predictions_there(spark: SparkSession, settings: Settings) -> None:
    said = pipeline.prepare(settings)
    assert said["rows"].startswith("3")
    pipeline.train(settings)
    assert any(name.endswith(".pt") for name in names("tests/runs"))
    pipeline.score(settings)
    scored = spark.read.parquet(PREDICTIONS)
    assert scored.count() == ROWS
    assert scored.where("prediction = label").count() > 0.8 * ROWS


def test_spark_s_files_are_committed_without_a_rename(raw: str) -> None:
    store = fsspec.filesystem("s3", use_listings_cache=False)
    assert '"committer" : "magic"' in store.cat("tests/raw/_SUCCESS").decode()
    assert not [name for name in store.find("tests/raw") if "_temporary" in name or "__magic" in name]


def test_a_store_that_is_away_for_some_seconds_is_waited_for(settings: Settings, s3: S3Server) -> None:
    s3.stop()
    back = threading.Timer(5.0, s3.start)
    back.start()
    try:
        assert pipeline.prepare(settings)["rows"].startswith("3")
    finally:
        back.join()


def test_a_bucket_that_is_not_there_is_one_line(settings: Settings) -> None:
    lost = settings.prepare.model_copy(update={"source": source("s3a://nowhere/raw")})
    with pytest.raises(StorageError, match=r"s3a://nowhere/raw.*there is no such bucket") as error:
        pipeline.prepare(settings.model_copy(update={"prepare": lost}))
    assert "\n" not in str(error.value)


def test_spark_finds_the_store_by_the_variables_of_python_s_client(spark: SparkSession, s3: S3Server) -> None:
    assert get_session(Cluster()) is spark
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    assert hadoop.get("fs.s3a.endpoint") == s3.url


def test_a_path_without_a_scheme_is_local_to_spark_and_to_python_whatever_the_default_is(
    spark: SparkSession, s3: S3Server, tmp_path: Path
) -> None:
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    before = hadoop.get("fs.defaultFS")
    raw = tmp_path / "raw.csv"
    raw.write_text("a,b,label\n" + "".join(f"{row},{-row},{row % 2}\n" for row in range(60)))
    output = str(tmp_path / "dataset")
    hadoop.set("fs.defaultFS", "s3a://tests")
    try:
        csv = {"format": "csv", "path": str(raw), "options": {"header": True, "inferSchema": True}}
        written = Prepare(source=csv, features=["a", "b"], label="label", output=output)
        pipeline.prepare(Settings(prepare=written))
    finally:
        hadoop.set("fs.defaultFS", before)
    assert Dataset.open(output).rows("train") > 40
    assert not list(names("tests"))
