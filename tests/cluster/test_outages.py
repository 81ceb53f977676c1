"""A run whose checkpoints lie on an S3 server that goes away in the middle."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

import sparkdl
from sparkdl import Cluster, Tracking, Train
from sparkdl.data import Dataset
from sparkdl.storage import list_folder
from sparkdl.training.checkpoints.checkpoint import load_manifest, load_shared
from sparkdl.training.checkpoints.checkpoint_folder import latest

from ..s3_server import S3Server

JOB = Path(__file__).parents[2] / "jobs" / "train.py"
RUNS = "s3://tests/runs"
SETTINGS = {"model": "mlp", "epochs": 20, "batch_size": 8, "checkpoint_steps": 20, "seed": 3}
OUTAGE_SECONDS = 10.0
"""Longer than a client waits by itself. A change of the policy is tried by hand with 120, too."""


def begun(process: subprocess.Popen[str]) -> str:
    """The folder of the run, once its first checkpoints are there."""
    while process.poll() is None:
        for run in list_folder(RUNS):
            if latest(f"{RUNS}/{run.name}"):
                return f"{RUNS}/{run.name}"
        time.sleep(0.1)
    pytest.fail(f"the run has ended before it had a checkpoint\n{process.communicate()[0]}")


@pytest.fixture
def training(clouds: Dataset, tmp_path: Path, s3: S3Server) -> Iterator[subprocess.Popen[str]]:
    """The job with two ranks in processes of its own, to which ``s3://`` leads as it does here."""
    tree = {
        "train": SETTINGS | {"dataset": clouds.path, "run_dir": RUNS},
        "cluster": {"num_ranks": 2},
        "tracking": {"uri": f"sqlite:///{tmp_path / 'mlflow.db'}"},
    }
    (tmp_path / "clouds.yaml").write_text(yaml.safe_dump(tree))
    command = [sys.executable, str(JOB), str(tmp_path / "clouds.yaml")]
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, text=True, cwd=tmp_path, **output) as process:
        yield process
        process.kill()


def test_an_outage_in_the_middle_of_a_run_costs_time_and_nothing_else(
    training: subprocess.Popen[str], s3: S3Server, clouds: Dataset, tmp_path: Path, spark
) -> None:
    folder = begun(training)
    s3.stop()
    time.sleep(OUTAGE_SECONDS)
    assert training.poll() is None
    s3.start()
    told, _ = training.communicate(timeout=120)
    assert training.returncode == 0, told
    assert "does not answer" in told
    undisturbed = sparkdl.train(
        clouds,
        Train(**SETTINGS, run_dir=str(tmp_path / "runs")),
        cluster=Cluster(num_ranks=2),
        tracking=Tracking(uri=f"sqlite:///{tmp_path / 'mlflow.db'}"),
        spark=spark,
    )
    ours, theirs = (
        load_shared(place, load_manifest(latest(place)))["model"]
        for place in (folder, str(Path(undisturbed.checkpoint).parent))
    )
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
