"""Asynchronous training without Spark: servers and workers are threads, everything else is as on a cluster."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparkdl.collectives import TorchBackend
from sparkdl.data import Dataset
from sparkdl.settings import Cluster, Resources, Train
from sparkdl.training.asynchronous.follow import follow
from sparkdl.training.asynchronous.starter import TaskStarter
from sparkdl.training.checkpoints.checkpoint import load_weights
from sparkdl.training.checkpoints.checkpoint_folder import latest
from sparkdl.training.job import Job, TrainingResult


class Threads:
    """Tasks as threads of this process; they end when the coordinator dismisses them."""

    def submit(
        self, work: Callable[[], list[str]], *, description: str, resources: Resources | None = None
    ) -> Future[list[str]]:
        future: Future[list[str]] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return future

    def cancel(self, *futures: Future[list[str]]) -> None:
        wait(futures, timeout=20)


class Double(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.double()


def network(input_shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    """In float64, so that a difference is one of methods and not of rounding.

    Its weights do not come from PyTorch's generator, which threads of one process would share.
    """
    layers = nn.Sequential(Double(), nn.Linear(*input_shape, 16), nn.Tanh(), nn.Linear(16, num_classes)).double()
    for parameter in layers.parameters():
        values = torch.arange(1, parameter.numel() + 1, dtype=torch.float64).sin()
        parameter.detach().copy_(0.3 * values.view(parameter.shape))
    return layers


class Slow(Double):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(0.01)
        return super().forward(rows)


def slow_network(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """The same, but each step takes a while."""
    layers = network(input_shape, num_classes)
    layers[0] = Slow()
    return layers


class Training:
    """Trains on the clouds in a folder, with what is given on top of plain settings."""

    def __init__(self, dataset: Dataset, folder: Path) -> None:
        self.dataset, self.folder = dataset, folder
        self.on_message: Callable[[int, dict[str, Any]], None] = lambda rank, message: None
        self.tasks = Threads()

    def settings(self, strategy: dict[str, Any] | str, **settings: Any) -> Train:
        plain = {"epochs": 2, "batch_size": 5, "model": network, "learning_rate": 0.1, "schedule": "constant"}
        return Train(**plain | {"strategy": strategy} | settings)

    def __call__(
        self, strategy: dict[str, Any] | str, *, workers: int = 2, servers: int = 2, **settings: Any
    ) -> TrainingResult:
        job = Job(self.dataset, self.settings(strategy, **settings), str(self.folder), TorchBackend(), workers)
        cluster = Cluster(num_ranks=workers, servers=servers)
        address = "127.0.0.1"
        checkpoint = latest(job.folder)
        starter = TaskStarter(job, cluster, self.tasks, name="test")
        return follow(job, cluster, starter, address, address, on_message=self.on_message, checkpoint=checkpoint)


@pytest.fixture
def train(clouds: Dataset, tmp_path: Path) -> Training:
    return Training(clouds, tmp_path)


def weights_of(result: TrainingResult) -> torch.Tensor:
    return nn.utils.parameters_to_vector(load_weights(result.checkpoint).values())
