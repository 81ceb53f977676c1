"""A look at what works together, with real ranks."""

from pathlib import Path

from pyspark.sql import SparkSession

from sparkdl import Settings
from sparkdl.doctor import examine
from sparkdl.errors import ExitCode


def test_all_that_a_training_needs_is_tried_and_nothing_is_left(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(train={"run_dir": str(tmp_path / "runs")}, tracking={"uri": f"sqlite:///{tmp_path}/mlflow.db"})
    findings = {finding.what: finding for finding in examine(settings)}
    assert list(findings) == ["packages", "extras", "Java", "Spark", "ranks", "storage", "tracking"]
    assert not any(finding.error for finding in findings.values())
    assert "2 slots for 2 ranks" in findings["Spark"].text and "exchanged a number by" in findings["ranks"].text
    assert list(tmp_path.iterdir()) == []


def test_what_will_not_work_is_said_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    tracking = {"uri": f"sqlite:///{tmp_path}/mlflow.db"}
    (tmp_path / "file").touch()
    settings = Settings(train={"run_dir": str(tmp_path / "file" / "runs")}, tracking=tracking)
    (storage,) = [finding for finding in examine(settings) if finding.what == "storage"]
    assert storage.error and storage.error.exit_code == ExitCode.STORAGE and "train.run_dir" in storage.text
    too_many = {finding.what: finding for finding in examine(Settings(cluster={"num_ranks": 64}, tracking=tracking))}
    assert "64 ranks were requested" in too_many["Spark"].text and too_many["Spark"].error
    assert "ranks" not in too_many and "tracking" in too_many
