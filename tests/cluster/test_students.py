"""Smaller networks that are made from a registered one: a student that learns from it, and what is left of it."""

import logging
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from mlflow import MlflowClient
from pyspark.sql import SparkSession

import sparkdl
from sparkdl import Cluster, Dataset, Tracking, Train
from sparkdl.errors import ConfigError, RegistryError
from sparkdl.models import NETWORK_FILE, load_weights
from sparkdl.tracking import download


@pytest.fixture(scope="module")
def given(
    clouds: Dataset, tmp_path_factory: pytest.TempPathFactory, empty_store: Path, spark: SparkSession
) -> dict[str, Any]:
    """What trainings share: a store that has the model ``large``."""
    folder = tmp_path_factory.mktemp("students")
    copy(empty_store, folder / "mlflow.db")
    tracking = Tracking(uri=f"sqlite:///{folder / 'mlflow.db'}", register_as="large")
    given = {"cluster": Cluster(num_ranks=2), "spark": spark}
    sparkdl.train(clouds, Train(run_dir=str(folder), epochs=3, batch_size=8), tracking=tracking, **given)
    return given | {"tracking": tracking.model_copy(update={"register_as": None})}


@pytest.fixture
def usual(tmp_path: Path) -> dict[str, Any]:
    """The settings of all trainings."""
    return {"run_dir": str(tmp_path / "runs"), "epochs": 3, "batch_size": 8, "learning_rate": 0.02}


def test_a_student_learns_from_a_teacher_that_is_asked_once(
    clouds: Dataset, usual: dict[str, Any], given: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    taught = {"model": "models:/large@candidate", "temperature": 2, "weight": 1}
    student = Train.model_validate({**usual, "teacher": taught})
    with caplog.at_level(logging.INFO, logger="sparkdl"):
        trained = sparkdl.train(clouds, student, **given)
        assert caplog.text.count("asking the teacher models:/large/1 about 106 training rows") == 1
        downpour = student.model_copy(update={"strategy": {"kind": "downpour"}})
        sparkdl.train(clouds, downpour, **given | {"cluster": Cluster(num_ranks=1)})
        assert caplog.text.count("asking the teacher") == 1
    assert trained.metrics["validation_accuracy"] > 0.5
    losses = [epoch["train_loss"] for epoch in trained.history]
    assert losses[-1] < losses[0]
    params = MlflowClient(given["tracking"].uri).get_run(trained.run_id).data.params
    assert params["train.teacher.model"] == "models:/large/1"
    (answers,) = (Path(student.run_dir) / "teachers").iterdir()
    assert sorted(file.name for file in answers.iterdir()) == [
        "complete",
        *(f"part-{number:06d}.safetensors" for number in range(4)),
    ]
    with pytest.raises(RegistryError, match="no alias 'best'"):
        sparkdl.check_train(clouds, student.model_copy(update={"teacher": {"model": "models:/large@best"}}), **given)
    with pytest.raises(ConfigError, match=r"train\.teacher\.temperature was 2\.0 and is 3\.0"):
        hotter = {"teacher": {**taught, "temperature": 3}, "resume": trained.run_id, "epochs": 4}
        sparkdl.check_train(clouds, student.model_copy(update=hotter), **given)


def test_a_network_of_which_half_has_left_is_trained_on_and_registered_smaller(
    clouds: Dataset, usual: dict[str, Any], given: dict[str, Any]
) -> None:
    pruned = Train.model_validate({**usual, "start_from": "models:/large@candidate", "pruning": "structured"})
    trained = sparkdl.train(clouds, pruned, **given)
    weights = load_weights(download(trained.model_uri, given["tracking"]) / NETWORK_FILE)
    shapes = [tuple(weight.shape) for name, weight in weights.items() if name.endswith("weight")]
    assert shapes == [(128, 4), (64, 128), (4, 64)]
    assert trained.metrics["validation_accuracy"] > 0.5
