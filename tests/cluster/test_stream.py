"""Scoring what is new: files that come to a folder, by a job that runs again and again."""

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pyspark.sql import SparkSession

from sparkdl import pipeline
from sparkdl.data.card import InputSpec
from sparkdl.data.model_card import ModelCard
from sparkdl.errors import CheckpointError, ConfigError, DataError, DatasetError
from sparkdl.models import NETWORK_FILE, build, export_network
from sparkdl.settings import Settings, Tracking
from sparkdl.tracking import start_run

Job = Callable[..., dict[str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Tracking]:
    """A registered model of two numbers in two classes."""
    folder = tmp_path_factory.mktemp("model")
    tracking = Tracking(uri=f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db", register_as="numbers")
    card = ModelCard(
        input=InputSpec(column="pair", kind="vector", shape=(2,), dtype="float32"),
        label_names=("low", "high"),
        raw_columns={"pair": "array<double>"},
        preprocessing=False,
    )
    torch.manual_seed(0)
    export_network(build("mlp", input_shape=(2,), num_classes=2), folder / NETWORK_FILE, torch.zeros(1, 2))
    (folder / "card.json").write_text(card.model_dump_json())
    with start_run(tracking, params={}) as run:
        return run.register(run.log_model(folder, inputs=dict(card.raw_columns)), {"test_accuracy": 0.5}).uri, tracking


@pytest.fixture
def job(spark: SparkSession, model: tuple[str, Tracking], tmp_path: Path) -> Job:
    """Scores files of JSON in the folder ``in`` into Parquet files in ``out``."""

    def run(work: Callable[[Settings], dict[str, str]] = pipeline.score, **score: Any) -> dict[str, str]:
        settings = {"model": model[0], "source": {"format": "json", "path": str(tmp_path / "in")}, "stream": True}
        settings |= {"output": str(tmp_path / "out"), "checkpoint": str(tmp_path / "checkpoint"), "key": "id"}
        return work(Settings(score=settings | score, tracking=model[1]))

    return run


def put(folder: Path, name: str, begin: int, count: int) -> None:
    lines = [json.dumps({"id": each, "pair": [each / 7, each % 3]}) for each in range(begin, begin + count)]
    (folder / "in").mkdir(exist_ok=True)
    (folder / name).write_text("\n".join(lines))
    (folder / name).rename(folder / "in" / name)


def written(file: Path) -> bool:
    """Whether a file comes within half a minute."""
    end = time.monotonic() + 30
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return file.exists()


def test_files_that_come_are_scored_once_each_and_a_row_that_cannot_be_behaves_as_in_a_batch(
    spark: SparkSession, job: Job, tmp_path: Path
) -> None:
    with pytest.raises(
        DataError, match=r"the columns of the json source .* are not known: .* add a file that has all columns"
    ):
        job()
    put(tmp_path, "first.json", 0, 20)
    assert "prediction" in job(pipeline.check_score)["columns"]
    assert not (tmp_path / "checkpoint").exists()  # nothing was run
    assert job()["rows"] == "20 new"
    put(tmp_path, "second.json", 20, 5)
    (tmp_path / "in" / "bad.json").write_text('{"id": 77, "pair": [1.0]}')
    with pytest.raises(DataError, match=r"1 of \d rows cannot be scored: id = 77: column 'pair'"):
        job()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 20
    assert job(where="id != 77")["rows"] == "5 new"
    assert job()["rows"] == "0 new"
    there = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row.id for row in there) == list(range(25)) and {row.prediction for row in there} <= {"low", "high"}


def test_a_stream_that_looks_again_and_again_ends_in_order_on_an_interrupt(job: Job, tmp_path: Path) -> None:
    put(tmp_path, "first.json", 0, 20)

    def come_and_interrupt() -> None:
        commits = tmp_path / "checkpoint" / "commits"
        if written(commits / "0"):
            put(tmp_path, "second.json", 20, 5)
            written(commits / "1")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=come_and_interrupt)
    thread.start()
    assert job(interval=0.2)["rows"] == "25 new"
    thread.join()
    assert job()["rows"] == "0 new"


def test_a_checkpoint_belongs_to_its_source_and_its_output(job: Job, tmp_path: Path) -> None:
    put(tmp_path, "first.json", 0, 20)
    job()
    other = str(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"belongs to the output parquet .*/out, but this stream has parquet"):
        job(output=other)
    with pytest.raises(ConfigError, match=r"belongs to the source json .*/in, but this stream has json .*elsewhere"):
        job(source={"format": "json", "path": other})
    with pytest.raises(ConfigError, match="is neither empty nor a checkpoint of sparkdl's"):
        job(checkpoint=str(tmp_path / "in"))
    with pytest.raises(DatasetError, match=r"/out already exists, but the checkpoint .*elsewhere is new"):
        job(checkpoint=other)
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(
        DatasetError, match=r"/out no longer exists, but according to the checkpoint .* rows were written"
    ):
        job()


@pytest.mark.parametrize("file", ["offsets/0", "metadata", "sources/0/0", "sparkdl.json"])
def test_a_damaged_checkpoint_is_one_line(job: Job, tmp_path: Path, file: str) -> None:
    put(tmp_path, "first.json", 0, 20)
    job()
    put(tmp_path, "second.json", 20, 5)
    (tmp_path / "checkpoint" / file).write_text("not what was written")
    for path in (tmp_path / "checkpoint").rglob(".*.crc"):
        path.unlink()
    (tmp_path / "checkpoint" / "commits" / "0").unlink()
    with pytest.raises(CheckpointError, match="damaged"):
        job()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ({"format": "idx", "path": "raw"}, "idx is a format of data sets that do not change"),
        ({"format": "jdbc", "options": {"url": "jdbc:x", "dbtable": "t"}}, "jdbc does not support streamed reading"),
        ({"format": "json", "path": "raw", "options": {"versionAsOf": 1}}, "reads a past version of a table"),
        ({"format": "json", "path": "nowhere"}, "the columns of the json source .*nowhere are not known"),
    ],
)
def test_what_cannot_be_streamed_is_refused_before_a_job(job: Job, source: dict[str, Any], says: str) -> None:
    with pytest.raises((ConfigError, DataError), match=says):
        job(source=source)
