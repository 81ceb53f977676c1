"""Training without lockstep on Spark: tasks that come and go, and real kills of everything that can be killed."""

from collections.abc import Callable
from pathlib import Path
from shutil import copy
from typing import Any

import pytest

import sparkdl
from sparkdl import Cluster, Tracking, Train
from sparkdl.errors import NotEnoughSlotsError, RankError
from sparkdl.tracking import Registered

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "asynchronous.py"
ROWS = 106
EPOCHS = 14
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "4",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.executor.cores": "1",
}


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


def test_it_is_evaluated_registered_and_goes_on_in_lockstep_and_back(fit) -> None:
    trained = fit("downpour")
    assert [epoch["rows"] for epoch in trained.history] == [ROWS, ROWS]
    assert isinstance(trained.registered, Registered)
    assert trained.metrics["validation_accuracy"] > 0.5
    together = fit("allreduce", epochs=4, resume=trained.run_id)
    assert len(together.history) == 4
    assert together.history[2]["train_loss"] < trained.history[0]["train_loss"]
    apart = fit("downpour", epochs=5, resume=together.run_id)
    assert apart.history[:4] == together.history
    assert apart.history[4]["train_loss"] < trained.history[0]["train_loss"]


def test_more_servers_than_slots_are_refused_with_both_numbers(fit) -> None:
    with pytest.raises(NotEnoughSlotsError, match=r"1 ranks and 5 servers were asked for, and this local Spark has 2"):
        fit("downpour", cluster=Cluster(num_ranks=1, servers=5))


def broken(input_shape, num_classes):
    import torch

    class Broken(torch.nn.Linear):
        def forward(self, rows):
            if self.training:
                raise ArithmeticError("the model does not like these rows")
            return super().forward(rows)

    return Broken(*input_shape, num_classes)


def test_an_error_of_the_model_is_the_runs_with_its_traceback(fit) -> None:
    with pytest.raises(RankError, match=r"Traceback[\s\S]*the model does not like these rows[\s\S]*worker 0 failed on"):
        fit("downpour", model=broken)
