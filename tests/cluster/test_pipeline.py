"""The jobs of the command on a real Spark: what a dry run finds, and what it leaves alone."""

from collections.abc import Callable
from pathlib import Path
from shutil import copy

import pytest
import yaml
from pyspark.sql import SparkSession

from sparkdl import main
from sparkdl.data import Dataset

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    spark: SparkSession, clouds: Dataset, empty_store: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> Run:
    """The command with a configuration, a csv file, a prepared dataset and a store; its code and what it prints."""
    (tmp_path / "points.csv").write_text("a,b,label\n" + "".join(f"{row}.5,{row},{row % 2}\n" for row in range(120)))
    copy(empty_store, tmp_path / "mlflow.db")
    source = {"format": "csv", "path": f"{tmp_path}/points.csv", "options": {"header": True, "inferSchema": True}}
    tree = {
        "prepare": {"source": source, "output": f"{tmp_path}/prepared"},
        "train": {"dataset": clouds.path, "run_dir": f"{tmp_path}/runs"},
        "extreme": {"dataset": clouds.path, "run_dir": f"{tmp_path}/extreme"},
        "score": {"output": f"{tmp_path}/predictions"},
        "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db", "spool": f"{tmp_path}/spool"},
    }
    (tmp_path / "points.yaml").write_text(yaml.safe_dump(tree))

    def run(command: str, *arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ending:
            main([command, f"{tmp_path}/points.yaml", *arguments])
        return int(ending.value.code or 0), *capfd.readouterr()

    return run


@pytest.mark.parametrize("command", ["prepare", "train"])
def test_a_dry_run_says_what_would_run_and_makes_nothing(command: str, run: Run, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    code, text, problem = run(command, "--dry-run")
    assert code == 0, problem
    assert text.endswith("nothing was run: this was a dry run\n")
    said = {"prepare": "vector of a (double), b (int)", "train": "106 train, 30 validation; 4 classes"}
    assert said[command] in text
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mlflow.db", "points.csv", "points.yaml"]


@pytest.mark.parametrize(
    ("command", "setting", "code", "words"),
    [
        ("prepare", "prepare.label=kind", 2, "'kind'"),
        ("prepare", "prepare.output={folder}/points.csv/prepared", 74, "cannot write to"),
        ("train", "train.model=mlp_of_mine", 2, "mlp_of_mine"),
        ("train", "cluster.num_ranks=3", 69, "3 ranks were requested, but this local Spark has 2 slots"),
        ("train", "train.run_dir={folder}/points.csv/runs", 74, "cannot write to"),
        ("train", "tracking.uri=http://127.0.0.1:9", 74, "cannot use the tracking store"),
        ("train-extreme", "extreme.buckets=3", 2, "is not sparse"),
        ("score", "score.model=models:/nothing/1", 2, "nothing"),
        ("score", "score.output={folder}", 2, "exists already"),
    ],
)
def test_a_dry_run_finds_what_would_fail_and_whose_fault_it_is(
    command: str, setting: str, code: int, words: str, run: Run, tmp_path: Path
) -> None:
    found, _, problem = run(command, setting.format(folder=tmp_path), "--dry-run")
    assert (found, words in problem) == (code, True), problem


def test_a_configuration_needs_no_more_than_the_dataset_of_its_job(run: Run, clouds: Dataset, tmp_path: Path) -> None:
    (tmp_path / "points.yaml").write_text(f"extreme: {{dataset: {clouds.path}}}")
    code, _, problem = run("train-extreme", "--dry-run")
    assert (code, "is not sparse" in problem) == (2, True), problem


def test_a_dataset_that_is_submitted_twice_with_one_key_is_prepared_once(run: Run, tmp_path: Path) -> None:
    code, first, problem = run("prepare", "--idempotency-key", "monday")
    assert code == 0, problem
    (tmp_path / "points.csv").unlink()
    code, second, problem = run("prepare", "--idempotency-key", "monday")
    assert (code, second) == (0, first), problem
    code, _, problem = run("prepare", "prepare.seed=1", "--idempotency-key", "monday")
    assert (code, "was used" in problem) == (2, True)
