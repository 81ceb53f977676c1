"""A layout that the ranks choose before they train."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from shutil import copy

import pytest

import sparkdl
from sparkdl import Cluster, Tracking, Train, TrainedModel
from sparkdl.planning import plan_training
from sparkdl.tracking.store import connect

CHOOSING = Cluster(num_ranks=2, layout="auto")


@pytest.fixture
def tracking(tmp_path: Path, empty_store: Path) -> Tracking:
    copy(empty_store, tmp_path / "mlflow.db")
    return Tracking(uri=f"sqlite:///{tmp_path / 'mlflow.db'}")


@pytest.fixture
def fit(clouds, tmp_path, tracking, spark) -> Callable[..., TrainedModel]:
    """Train on the clouds."""

    def fit(cluster: Cluster, **settings: object) -> TrainedModel:
        recipe = {"model": "mlp", "model_options": {"hidden": [256, 256, 256]}, "optimizer": "sgd"}
        recipe |= {"epochs": 2, "batch_size": 8, "learning_rate": 0.01, "run_dir": str(tmp_path)}
        return sparkdl.train(clouds, Train(**recipe | settings), cluster=cluster, tracking=tracking, spark=spark)

    return fit


@pytest.fixture
def room(monkeypatch) -> Callable[[float], None]:
    """Let ranks have so many bytes left, whatever this machine has."""

    def set_room(size: float) -> None:
        monkeypatch.setattr(plan_training, "_measured", lambda *given: replace(measured(*given), room=size))

    measured = plan_training._measured
    return set_room


def test_what_fits_is_chosen_and_takes_the_steps_of_whole_replicas(fit, tracking, room) -> None:
    room(1.3e6)
    chosen, whole = fit(CHOOSING), fit(Cluster(num_ranks=2, backend="torch"))
    client = connect(tracking)
    params = client.get_run(chosen.run_id).data.params
    assert params["cluster.layout.data"] == "1" and params["backend"] == "torch"
    table = Path(client.download_artifacts(chosen.run_id, "layout.txt")).read_text()
    assert table.startswith("cluster.layout") and "{data: 2}, shard: all" in table
    assert "each rank has 1 MB left; of the layouts that fit, {data: 1, " in table
    steps = [client.get_metric_history(each.run_id, "step_loss")[-1].step for each in (chosen, whole)]
    assert steps[0] == steps[1]  # which have as many rows, whatever was chosen
    assert chosen.metrics["validation_loss"] == pytest.approx(whole.metrics["validation_loss"], rel=0.1)
    room(1e9)
    resumed = fit(CHOOSING, epochs=3, resume=chosen.run_id)  # in what is best now
    assert resumed.run_id == chosen.run_id and len(resumed.history) == 3
