"""A network that learns from a registered one: asked once, by tasks, and read by ranks as a column."""

import logging
from pathlib import Path
from shutil import copy

import pytest
from mlflow import MlflowClient
from pyspark.sql import SparkSession

import sparkdl
from sparkdl import Cluster, Dataset, Tracking, Train
from sparkdl.errors import ConfigError, RegistryError


def test_a_student_learns_from_a_teacher_that_is_asked_once(
    clouds: Dataset, tmp_path: Path, empty_store: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    copy(empty_store, tmp_path / "mlflow.db")
    tracking = Tracking(uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    run_dir, cluster = tmp_path / "runs", Cluster(num_ranks=2)
    usual = {"run_dir": str(run_dir), "epochs": 3, "batch_size": 8, "learning_rate": 0.02}
    registering = tracking.model_copy(update={"register_as": "large"})
    sparkdl.train(clouds, Train(**usual), cluster=cluster, tracking=registering, spark=spark)

    taught = {"model": "models:/large@candidate", "temperature": 2, "weight": 1}
    student = Train.model_validate({**usual, "teacher": taught, "model_options": {"hidden": [4]}})
    given = {"cluster": cluster, "tracking": tracking, "spark": spark}
    with caplog.at_level(logging.INFO, logger="sparkdl"):
        trained = sparkdl.train(clouds, student, **given)
        assert caplog.text.count("asking the teacher models:/large/1 about 106 training rows") == 1
        downpour = student.model_copy(update={"strategy": {"kind": "downpour"}})
        for other in (student.model_copy(update={"seed": 1}), downpour):
            assert sparkdl.train(clouds, other, **given).metrics["validation_accuracy"] > 0.5
        assert caplog.text.count("asking the teacher") == 1
    assert trained.metrics["validation_accuracy"] > 0.5
    losses = [epoch["train_loss"] for epoch in trained.history]
    assert losses[-1] < losses[0]
    params = MlflowClient(tracking.uri).get_run(trained.run_id).data.params
    assert params["train.teacher.model"] == "models:/large/1"
    (answers,) = (run_dir / "teachers").iterdir()
    assert sorted(file.name for file in answers.iterdir()) == [
        "complete",
        *(f"part-{number:06d}.safetensors" for number in range(4)),
    ]
    with pytest.raises(RegistryError, match="no alias 'best'"):
        there_is_none = student.model_copy(update={"teacher": {"model": "models:/large@best"}})
        sparkdl.check_train(clouds, there_is_none, **given)
    with pytest.raises(ConfigError, match=r"train\.teacher\.temperature was 2\.0 and is 3\.0"):
        hotter = {"teacher": {**taught, "temperature": 3}, "resume": trained.run_id, "epochs": 4}
        sparkdl.check_train(clouds, student.model_copy(update=hotter), **given)
