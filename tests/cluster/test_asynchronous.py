"""Training without lockstep on Spark: tasks that come and go, and real kills of everything that can be killed."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Any

import psutil
import pytest

import sparkdl
from benchmarks.asynchronous.coming_and_going import DYNAMIC
from benchmarks.standalone import StandaloneCluster, standalone_cluster
from sparkdl import Cluster, Tracking, Train
from sparkdl.errors import NotEnoughSlotsError, RankError
from sparkdl.tracking import Registered
from sparkdl.training.checkpoint import load_weights

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "asynchronous.py"
ROWS = 106
EPOCHS = 8


@pytest.fixture
def fit(clouds, tmp_path, empty_store, spark) -> Callable[..., Any]:
    """Train on the clouds with one worker and one server, which is what the embedded Spark has room for."""
    copy(empty_store, tmp_path / "mlflow.db")
    tracking = Tracking(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", register_as="clouds")

    def fit(strategy, cluster=None, **settings):
        plain = {"epochs": 2, "batch_size": 8, "learning_rate": 0.1, "run_dir": str(tmp_path / "runs")}
        chosen = Train(**plain | {"strategy": strategy} | settings)
        return sparkdl.train(clouds, chosen, cluster=cluster or Cluster(num_ranks=1), tracking=tracking, spark=spark)

    return fit


def centred(input_shape, num_classes):
    import torch

    class Centred(torch.nn.Module):
        """Takes a running mean from its inputs, which is no part of its state_dict."""

        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(input_shape), persistent=False)
            self.register_buffer("mask", torch.full((2,), -torch.inf), persistent=False)

        def forward(self, rows):
            if self.training:
                self.mean += 0.3 * (3 + rows.detach().mean(dim=0) - self.mean)
            return 2 * (rows - self.mean) + self.mask.exp().sum()

    return torch.nn.Sequential(Centred(), torch.nn.Linear(*input_shape, num_classes))


def test_what_workers_have_in_buffers_that_are_not_persistent_is_evaluated_and_kept(fit, tmp_path) -> None:
    trained = fit("downpour", model=centred, epochs=3)
    together = fit("allreduce", model=centred, epochs=4, resume=trained.run_id)
    for best in sorted((tmp_path / "runs" / trained.run_id).glob("best-*.pt")):
        weights = load_weights(str(best))
        assert weights["0.mean"].mean() > 1 and weights["0.mask"].isneginf().all()
    assert min(trained.metrics["validation_accuracy"], together.metrics["validation_accuracy"]) > 0.5


def test_it_is_evaluated_registered_and_goes_on_in_lockstep_and_back(fit) -> None:
    trained = fit("downpour")
    assert [epoch["rows"] for epoch in trained.history] == [ROWS, ROWS]
    assert isinstance(trained.registered, Registered)
    assert trained.metrics["validation_accuracy"] > 0.5
    together = fit("allreduce", epochs=4, resume=trained.run_id)
    assert len(together.history) == 4
    assert together.history[2]["train_loss"] < trained.history[0]["train_loss"]
    fragments = {"kind": "decoupled_diloco", "period": 2, "fragments": 2, "quorum": 1, "grace": 0}
    apart = fit(fragments, epochs=5, resume=together.run_id)
    assert apart.history[:4] == together.history
    assert apart.history[4]["rows"] == ROWS
    assert apart.history[4]["train_loss"] < trained.history[0]["train_loss"]
    assert isinstance(apart.registered, Registered)


def test_more_servers_than_slots_are_refused_with_both_numbers(fit) -> None:
    with pytest.raises(NotEnoughSlotsError, match=r"1 ranks and 5 servers were asked for, and this local Spark has 2"):
        fit("downpour", cluster=Cluster(num_ranks=1, servers=5))


def broken(input_shape, num_classes):
    import torch
    from pyspark import TaskContext

    class Broken(torch.nn.Linear):
        def forward(self, rows):
            if self.training and TaskContext.get():  # and not where a step is tried before
                raise ArithmeticError("the model does not like these rows")
            return super().forward(rows)

    return Broken(*input_shape, num_classes)


def test_an_error_of_the_model_is_the_runs_with_its_traceback(fit) -> None:
    with pytest.raises(RankError, match=r"Traceback[\s\S]*the model does not like these rows[\s\S]*worker 0 failed on"):
        fit("downpour", model=broken)


def test_sandblaster_descends_with_all_rows_in_every_step(fit) -> None:
    history = fit("sandblaster", epochs=5).history
    losses = [epoch["train_loss"] for epoch in history]
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.6 * losses[0]
    assert [epoch["rows"] for epoch in history] == [ROWS] * 5


class Submitted:
    """A run under dynamic allocation, watched through its log and hurt from outside."""

    def __init__(self, cluster: StandaloneCluster, dataset: str, folder: Path) -> None:
        self.cluster, self._dataset, self.folder = cluster, dataset, folder
        self.log = folder / "driver.log"
        self.slow = folder / "slow"
        """While it is there, an epoch takes half a minute of one worker."""

    def start(self, epochs: int) -> None:
        settings = DYNAMIC | {"spark.executor.cores": "1"}
        options = ["--properties-file", str(ROOT / "conf" / "spark-defaults.conf")]
        options += [part for item in settings.items() for part in ("--conf", "=".join(item))]
        self.process = self.cluster.start(
            PROGRAM, self._dataset, str(self.folder), str(epochs), log=self.log, options=options
        )

    def wait_for_epoch(self, number: int) -> None:
        self.wait_for(lambda: f"epoch {number}/" in self.log.read_text())

    def wait_for(self, condition: Callable[[], object], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()[-6000:]
            time.sleep(0.1)

    def workers(self) -> list[psutil.Process]:
        return list(self.cluster.tasks("worker").values())


def test_workers_come_and_go_in_the_middle_of_epochs_and_whatever_is_killed_the_run_goes_on(
    clouds, tmp_path, tmp_path_factory, empty_store, monkeypatch
) -> None:
    copy(empty_store, tmp_path / "mlflow.db")
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody is, and what speaks within a run does not ask
    monkeypatch.delenv("no_proxy", raising=False)
    with standalone_cluster(tmp_path_factory.mktemp("executors"), cores=(1, 1), pythonpath=str(ROOT)) as cluster:
        run = Submitted(cluster, clouds.path, tmp_path)
        run.start(EPOCHS)
        run.wait_for_epoch(1)
        assert len(run.workers()) == 1
        run.slow.touch()
        for _ in range(2):
            cluster.start_worker(1)
        run.wait_for(lambda: len(run.workers()) == 3)  # they have come in the middle of an epoch

        one, another = run.workers()[:2]
        one.parents()[1].kill()  # a worker goes with its executor
        another.kill()
        run.wait_for(lambda: len(run.workers()) == 3)

        run.process.kill()  # the driver
        run.process.wait()
        before = run.log.read_text().count("epoch ")
        run.slow.unlink()
        run.start(EPOCHS)
        run.wait_for(lambda: run.log.read_text().count("epoch ") > before)
        run.slow.touch()
        server = cluster.tasks("server")[0]
        server.kill()
        run.wait_for(lambda: cluster.tasks("server").get(0, server) != server)
        run.slow.unlink()
        assert run.process.wait(timeout=120) == 0, run.log.read_text()[-6000:]

    history = json.loads(run.log.read_text().splitlines()[-1])["history"]
    assert len(history) == EPOCHS
    lost = [epoch for epoch in history if epoch["rows"] != ROWS]
    assert len(lost) <= 1  # the epoch in which the only server was killed
    assert all(epoch["rows"] <= ROWS for epoch in history)
