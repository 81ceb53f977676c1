"""Asynchronous training in the embedded Spark."""

from collections.abc import Callable
from shutil import copy
from typing import Any

import pytest

import sparkdl
from sparkdl import Cluster, Tracking, Train
from sparkdl.errors import NotEnoughSlotsError, RankError
from sparkdl.tracking import Registered
from sparkdl.training.checkpoints.checkpoint import load_weights

ROWS = 106


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


def test_it_is_evaluated_registered_and_goes_on_synchronously_and_back(fit) -> None:
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
    with pytest.raises(NotEnoughSlotsError, match=r"1 ranks and 5 servers were requested, but this local Spark has 2"):
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
