"""What a run is part of: the caller's run, and the experiment that the caller means."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from sparkdl.errors import TrackingError
from sparkdl.settings import Tracking
from sparkdl.tracking import active_run, start_run, sync, under
from sparkdl.tracking.store import experiment_id


@pytest.fixture
def place(store: str, tmp_path: Path, use_store: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> Tracking:
    """The store that MLflow uses, too, without an experiment."""
    for name in ("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    use_store(store)
    return Tracking(uri=store, spool=f"{tmp_path}/spool")


def begun(client: MlflowClient, settings: Tracking) -> tuple[str | None, str]:
    """The parent and the experiment of a run that is made now."""
    with start_run(settings, params={}) as run:
        pass
    found = client.get_run(run.run_id)
    return found.data.tags.get(MLFLOW_PARENT_RUN_ID), client.get_experiment(found.info.experiment_id).name


def test_a_run_inside_the_callers_is_its_child_and_of_its_experiment(place: Tracking, client: MlflowClient) -> None:
    with mlflow.start_run(experiment_id=experiment_id(client, "the callers")) as theirs:
        assert begun(client, place) == (theirs.info.run_id, "the callers")
        assert begun(client, place.model_copy(update={"experiment": "ours"})) == (theirs.info.run_id, "ours")
        assert mlflow.active_run() is theirs
    found = client.get_run(theirs.info.run_id)
    assert found.info.status == "FINISHED"
    assert not found.data.params
    assert begun(client, place) == (None, "sparkdl")


def test_the_environment_names_parent_and_experiment(
    place: Tracking, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = experiment_id(client, "by number")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", number)
    assert begun(client, place) == (None, "by number")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "by name")
    assert begun(client, place) == (None, "by name")
    assert begun(client, place.model_copy(update={"experiment": "ours"})) == (None, "ours")
    parent = client.create_run(number).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", parent)
    assert begun(client, place) == (parent, "by number")
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    with pytest.raises(TrackingError, match="there is no run 00000000000000000000000000000000, which MLFLOW_RUN_ID"):
        begun(client, place)


def test_a_run_in_another_store_is_no_parent_and_the_log_says_so(
    place: Tracking,
    client: MlflowClient,
    tmp_path: Path,
    use_store: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    theirs = client.create_run(experiment_id(client, "open elsewhere"))
    use_store(f"sqlite:///{tmp_path}/other.db")
    with under(theirs), caplog.at_level(logging.WARNING, "sparkdl"):
        assert begun(client, place) == (None, "sparkdl")
    assert f"the run {theirs.info.run_id} is open in sqlite:///{tmp_path}/other.db" in caplog.text


def test_a_thread_may_work_for_the_run_of_another(place: Tracking, client: MlflowClient) -> None:
    found = []
    with mlflow.start_run(experiment_id=experiment_id(client, "in threads")) as theirs:
        caller = active_run()

        def work() -> None:
            with under(caller):
                found.append(begun(client, place)[0])
            found.append(begun(client, place)[0])

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [theirs.info.run_id, None]


def test_what_is_delivered_after_an_outage_has_its_parent(
    place: Tracking, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> None:
        raise TrackingError("the store does not answer")

    with (
        mlflow.start_run(experiment_id=experiment_id(client, "through an outage")) as theirs,
        monkeypatch.context() as outage,
    ):
        outage.setattr("sparkdl.tracking.courier.PATIENCE", 1.0)
        outage.setattr("sparkdl.tracking.start.connect", down)
        outage.setattr("sparkdl.tracking.delivery.connect", down)
        with start_run(place.model_copy(update={"offline": True}), params={}):
            pass
    (delivered,) = sync(place)
    found = client.get_run(delivered.run_id)
    assert found.data.tags[MLFLOW_PARENT_RUN_ID] == theirs.info.run_id
    assert found.info.experiment_id == theirs.info.experiment_id
