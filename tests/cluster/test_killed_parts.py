"""A rank that has a part of a replica is killed in the middle of a run."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import copy

import psutil
import pytest
import torch

import sparkdl
from benchmarks.standalone import numbered_threads
from sparkdl import Cluster, Tracking, Train
from sparkdl.models import NETWORK_FILE, load_weights
from sparkdl.settings import RankLayout
from sparkdl.tracking import download
from sparkdl.training.checkpoints.checkpoint import load_manifest
from sparkdl.training.checkpoints.checkpoint_folder import latest

STEPS = 20
"""After which the rank is killed."""
SECONDS = 120.0


def rank(number: int) -> psutil.Process | None:
    """The process that is a rank of the embedded Spark at the moment."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if number in numbered_threads(process):
                return process
    return None


@contextmanager
def killing(runs: Path, killed: list[int]) -> Iterator[None]:
    """Kill rank 1 of the run in a folder once its checkpoints have come far enough."""
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.02):
            newest = [latest(str(run)) for run in runs.glob("*") if run.is_dir()]
            if newest and newest[0] and load_manifest(newest[0]).step >= STEPS and (victim := rank(1)):
                victim.kill()
                killed.append(victim.pid)
                return

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture
def fit(clouds, tmp_path, empty_store, spark) -> Callable[..., dict[str, torch.Tensor]]:
    """Train on the clouds in a layout; the weights."""
    copy(empty_store, tmp_path / "mlflow.db")
    tracking = Tracking(uri=f"sqlite:///{tmp_path / 'mlflow.db'}")

    def fit(layout: RankLayout, folder: str, model: str = "mlp") -> dict[str, torch.Tensor]:
        settings = Train(
            epochs=15,
            batch_size=8,
            learning_rate=0.01,
            model=model,
            checkpoint_steps=5,
            run_dir=str(tmp_path / folder),
        )
        cluster = Cluster(layout=layout, restart_seconds=0.1)
        trained = sparkdl.train(clouds, settings, cluster=cluster, tracking=tracking, spark=spark)
        return load_weights(download(trained.model_uri, tracking) / NETWORK_FILE)

    return fit


@pytest.mark.parametrize(
    ("layout", "model"),
    [
        (RankLayout(tensor=2), "mlp"),
        (RankLayout(pipeline=2), "mlp"),
        (RankLayout(experts=2), "mixture_of_experts"),
    ],
    ids=["tensor", "pipeline", "experts"],
)
def test_the_run_goes_on_and_ends_with_the_weights_of_one_that_was_left_alone(
    fit, tmp_path, caplog, layout, model
) -> None:
    alone, killed = fit(layout, "alone", model), list[int]()
    started = time.monotonic()
    with killing(tmp_path / "runs", killed):
        ours = fit(layout, "runs", model)
    assert killed and "another attempt goes on" in caplog.text
    assert time.monotonic() - started < SECONDS
    assert all(torch.allclose(ours[name], alone[name], atol=1e-5) for name in alone)
