"""What the classic and the current stack made is read by whichever of them runs these tests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from pyspark.sql import SparkSession

import sparkdl
from sparkdl import Cluster, Dataset
from sparkdl.training.checkpoints.checkpoint import load_manifest
from sparkdl.training.checkpoints.checkpoint_folder import latest

from ..stacks.made import DATASETS, NAME, STACKS, people, prepared, tracking, train_settings, unpack


class Made:
    """What a stack made, and what it said of it."""

    def __init__(self, stack: str, folder: Path) -> None:
        self.found: dict[str, Any] = unpack(stack, folder)
        self.folder = folder


@pytest.fixture(scope="module", params=STACKS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(request.param, tmp_path_factory.mktemp("made") / "by the other")


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    yield from ((str(path), path.read_bytes()) for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize("kind", DATASETS)
def test_a_dataset_is_whole_and_prepare_recognises_the_same_rows_in_it(
    made: Made, kind: str, spark: SparkSession
) -> None:
    Dataset.open(str(made.folder / kind)).verify()
    before = dict(contents(made.folder / kind))
    prepared(kind, made.folder, spark)  # other rows or another hash of them would be an error
    assert dict(contents(made.folder / kind)) == before


def test_a_registered_model_says_the_same(made: Made, spark: SparkSession) -> None:
    scored = sparkdl.score(people(spark), f"models:/{NAME}/1", tracking=tracking(made.folder)).orderBy("id").collect()
    assert [row.prediction for row in scored] == made.found["predictions"]
    assert [row.probability for row in scored] == pytest.approx(made.found["probabilities"], rel=1e-5)


def test_a_run_goes_on_from_its_checkpoint_and_keeps_its_curves(made: Made, spark: SparkSession) -> None:
    run_id, first = made.found["run_id"], made.found["history"][0]
    begun = load_manifest(str(latest(str(made.folder / "runs" / run_id))))
    trained = sparkdl.train(
        str(made.folder / "vectors"),
        train_settings(made.folder, epochs=2, resume=run_id),
        cluster=Cluster(num_ranks=2),
        tracking=tracking(made.folder),
        spark=spark,
    )
    assert trained.run_id == run_id
    assert trained.history[0] == first
    assert load_manifest(str(latest(str(made.folder / "runs" / run_id)))).step == 2 * begun.step
    client = MlflowClient(tracking(made.folder).uri)
    losses = {loss.step: loss.value for loss in client.get_metric_history(run_id, "train_loss")}
    assert losses == {1: first["train_loss"], 2: trained.history[1]["train_loss"]}
    assert client.get_run(run_id).info.status == "FINISHED"
    assert len(client.search_model_versions(f"name = '{NAME}'")) == 2
