import json
import logging
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import mlflow
import pandas as pd
import pytest
from mlflow import MlflowClient

from sparkdl.errors import RunCancelledError, TrackingError
from sparkdl.settings import Tracking
from sparkdl.tracking import courier, download, journal, page_command, start_run, sync, tracking_uri
from sparkdl.tracking.figures import loss_curve
from sparkdl.tracking.journal import Journal

Make = Callable[..., Tracking]


def test_a_run_keeps_settings_metrics_and_where_it_came_from(settings: Make, client: MlflowClient) -> None:
    params = {"train": {"epochs": 3, "options": {"password": "hunter2"}}} | {f"p{i}": i for i in range(250)}
    with start_run(settings(run_name="first"), params=params, tags={"team": "us"}) as run:
        for step in range(2500):
            run.log_metrics({"loss": 1 / (step + 1), "accuracy": 0.5}, step=step)
    kept = client.get_run(run.run_id)
    assert kept.info.status == "FINISHED"
    assert kept.info.run_name == "first"
    assert len(kept.data.params) == 252
    assert kept.data.params["train.epochs"] == "3"
    history = client.get_metric_history(run.run_id, "loss")
    assert [metric.step for metric in history] == list(range(2500))
    assert history[1].value == 0.5
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    assert len(kept.data.tags.get("mlflow.source.git.commit", "")) == len(commit)
    assert kept.data.tags["version.torch"]
    assert kept.data.tags["team"] == "us"
    settings_file = client.download_artifacts(run.run_id, "settings.json")
    assert json.loads(Path(settings_file).read_text())["train"] == {"epochs": 3, "options": {"password": "***"}}
    assert "hunter2" not in str(kept.to_dictionary())


def test_the_dataset_is_an_input_of_the_run(settings: Make, client: MlflowClient) -> None:
    with start_run(settings(), params={}) as run:
        run.log_dataset(name="digits", digest="ab" * 32, source="s3://me:word@bucket/x", card='{"rows": 5}')
    (entry,) = client.get_run(run.run_id).inputs.dataset_inputs
    assert (entry.dataset.name, entry.dataset.profile) == ("digits", '{"rows": 5}')
    assert json.loads(entry.dataset.source) == {"uri": "s3://***@bucket/x", "digest": "ab" * 32}
    assert "card.json" in [file.path for file in client.list_artifacts(run.run_id)]


def test_pictures_and_files_are_kept(settings: Make, client: MlflowClient, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with start_run(settings(), params={}) as run:
        run.log_figure(loss_curve([{"train_loss": 0.5}]), "loss.png")
        run.log_artifact(tmp_path / "notes.txt")
    assert {"loss.png", "notes.txt"} <= {file.path for file in client.list_artifacts(run.run_id)}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ValueError("no"), "FAILED"),
        (KeyboardInterrupt(), "KILLED"),
        (SystemExit(1), "KILLED"),
        (RunCancelledError("stopped"), "KILLED"),
    ],
)
def test_a_run_ends_as_what_happened(settings: Make, client: MlflowClient, error: BaseException, status: str) -> None:
    with pytest.raises(type(error)), start_run(settings(), params={}) as run:
        run.log_metrics({"loss": 1.0}, step=7)
        raise error
    assert client.get_run(run.run_id).info.status == status
    assert client.get_run(run.run_id).data.metrics["loss"] == 1.0


def test_a_resumed_run_goes_on_without_a_gap_or_a_double_point(settings: Make, client: MlflowClient) -> None:
    with pytest.raises(RunCancelledError), start_run(settings(), params={"epochs": 2, "seed": 1}) as first:
        for step in range(1, 8):
            first.log_metrics({"step_loss": 1 / step}, step=step)
        raise RunCancelledError("somebody pressed stop")
    with start_run(settings(), params={"epochs": 5, "seed": 1, "new": True}, resume=first.run_id) as second:
        while client.get_run(first.run_id).info.status != "RUNNING":
            time.sleep(0.05)
        for step in range(5, 11):  # from the checkpoint of step 4
            second.log_metrics({"step_loss": 1 / step, "learning_rate": 0.1}, step=step)
            second.log_metrics({"step_loss": 2 / step}, step=step)  # an attempt that took the step again
    kept = client.get_run(first.run_id)
    assert second.run_id == first.run_id
    assert kept.info.status == "FINISHED"
    history = client.get_metric_history(first.run_id, "step_loss")
    assert [(metric.step, metric.value) for metric in history] == [(step, 1 / step) for step in range(1, 11)]
    assert [metric.step for metric in client.get_metric_history(first.run_id, "learning_rate")] == [5, 6, 7, 8, 9, 10]
    assert kept.data.params == {"epochs": "2", "seed": "1", "new": "true"}
    assert kept.data.tags["resumed.epochs"] == "5"


def test_a_run_that_is_still_going_on_is_neither_resumed_nor_synced(
    settings: Make, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LOCK_SECONDS", 0.1)
    with start_run(settings(), params={}) as run:
        words = "still being recorded by another process"
        with pytest.raises(TrackingError, match=words), start_run(settings(), params={}, resume=run.run_id):
            pytest.fail("the run was started twice")
        assert [words in synced.reason for synced in sync(settings())] == [True]
    assert client.get_run(run.run_id).info.status == "FINISHED"
    assert not sync(settings())


@pytest.mark.parametrize(
    "damage",
    ["", '{"run_id": ', "[]", '{"opened_as": "a", "delivered": "x"}', "\udcff"],
    ids=["empty", "torn", "a list", "no number", "no text"],
)
def test_a_damaged_header_holds_up_no_other_run(
    settings: Make, client: MlflowClient, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    with pytest.raises(RunCancelledError), start_run(settings(), params={}) as run:
        raise RunCancelledError("somebody pressed stop")
    damaged, whole = (tmp_path / "spool" / name for name in ("a-damaged", "b-whole"))
    for folder in (damaged, whole):
        header = {"opened_as": "a", "ended": False, "handed_out": False}
        left = Journal(folder, header | {"run_id": run.run_id, "store": settings().uri})
        left.append("metrics", {"time": 1, "step": 0, "metrics": {folder.name: 1.0}})
        left.close()
    (damaged / "journal.json").write_text(damage, errors="surrogateescape")
    told, synced = sync(settings())
    assert f"{damaged}/journal.json is damaged" in told.reason and synced.left == 0
    with caplog.at_level(logging.WARNING, "sparkdl"), start_run(settings(), params={}, resume=run.run_id):
        pass
    assert f"{damaged}/journal.json is damaged" in caplog.text
    assert client.get_run(run.run_id).data.metrics["b-whole"] == 1.0
    assert (damaged / "entries.jsonl").exists()


def test_a_run_that_is_not_there_cannot_be_resumed(settings: Make) -> None:
    with (
        pytest.raises(TrackingError, match="cannot resume the run 0123"),
        start_run(settings(), params={}, resume="0123"),
    ):
        pytest.fail("the run was started")


def test_somebody_elses_active_run_is_left_alone(
    settings: Make, client: MlflowClient, store: str, use_store: Callable[[str], None]
) -> None:
    use_store(store)
    with mlflow.start_run() as theirs, start_run(settings(), params={"a": 1}) as ours:
        ours.log_metrics({"loss": 1.0}, step=0)
        active = mlflow.active_run()
        assert active is not None
        assert active.info.run_id == theirs.info.run_id != ours.run_id
    assert not client.get_run(theirs.info.run_id).data.params
    assert not client.get_run(theirs.info.run_id).data.metrics


def test_the_machine_is_watched_while_the_run_lasts(
    settings: Make, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    with start_run(settings(), params={}) as run:
        time.sleep(0.8)
    assert "system/cpu_utilization_percentage" in client.get_run(run.run_id).data.metrics


def test_what_cannot_be_read_is_a_warning_and_training_goes_on(
    settings: Make, client: MlflowClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "sparkdl"), start_run(settings(), params={}) as run:
        run.log_artifact("/nowhere/at/all")
        run.log_metrics({"loss": 1.0}, step=0)
    assert len(caplog.records) == 1
    assert "/nowhere/at/all could not be recorded" in caplog.text
    assert client.get_run(run.run_id).data.metrics["loss"] == 1.0


def test_a_model_is_logged_quickly_with_signature_and_example(
    settings: Make, client: MlflowClient, folder: Path
) -> None:
    columns = {"features": "array<float>", "age": "int", "when": "timestamp", "photo": "struct<data:binary,height:int>"}
    with start_run(settings(), params={}) as run:
        start = time.perf_counter()
        uri = run.log_model(folder, inputs=columns, example=None)
        assert time.perf_counter() - start < 8  # guessing requirements takes longer, on any machine
    assert {path.name for path in download(uri, settings()).iterdir()} == {"network.safetensors", "card.json"}
    (output,) = client.get_run(run.run_id).outputs.model_outputs
    assert uri == f"models:/{output.model_id}"
    assert client.get_logged_model(output.model_id).status == "READY"
    root = download(uri, settings()).parent.parent
    signature = mlflow.models.Model.load(str(root)).signature
    assert signature.inputs.input_names() == list(columns)
    assert signature.outputs.input_names() == ["prediction", "probability", "top_k"]
    requirements = (root / "requirements.txt").read_text()
    assert "torch==" in requirements and "numba" not in requirements and "pyspark" not in requirements
    assert (root / "code" / "sparkdl" / "scoring" / "pyfunc.py").exists()
    assert "+" not in requirements  # no index has what a build adds to its version


def test_an_example_of_raw_rows_is_kept_beside_the_model(settings: Make, folder: Path) -> None:
    with start_run(settings(), params={}) as run:
        uri = run.log_model(folder, inputs={"image": "binary"}, example=pd.DataFrame({"image": [b"\x00\xff"]}))
    root = download(uri, settings()).parent.parent
    example = mlflow.models.Model.load(str(root)).load_input_example(str(root))
    assert example["image"].tolist() == [b"\x00\xff"]


def test_a_model_that_cannot_be_logged_is_an_error(settings: Make, folder: Path) -> None:
    with pytest.raises(TrackingError, match="could not be logged"), start_run(settings(), params={}) as run:
        run.log_model(folder / "nothing", inputs={"a": "int"})
    unknown = "type 'map<int,int>', which MLflow cannot describe"
    with pytest.raises(TrackingError, match=unknown), start_run(settings(), params={}) as run:
        run.log_model(folder, inputs={"a": "map<int,int>"})


def test_a_server_that_is_not_there_is_found_before_anything_expensive() -> None:
    start = time.perf_counter()
    settings = Tracking(uri="http://me:word@127.0.0.1:9")
    words = r"cannot use the tracking store http://\*\*\*@127.0.0.1:9"
    with pytest.raises(TrackingError, match=words), start_run(settings, params={}):
        pytest.fail("the run was started")
    assert time.perf_counter() - start < 5


def test_an_end_without_a_store_does_not_say_that_everything_was_delivered(
    settings: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(courier, "PATIENCE", 1.0)
    with (
        caplog.at_level(logging.WARNING, "sparkdl"),
        start_run(settings(uri="http://127.0.0.1:9", offline=True), params={"a": 1}),
    ):
        pass
    assert "deliver them with `sparkdl sync`" in caplog.text
    assert "delivered" not in caplog.text.replace("`sparkdl sync` delivers", "")


def test_a_deleted_experiment_is_told_how_to_restore(settings: Make, client: MlflowClient) -> None:
    with start_run(settings(), params={}):
        pass
    experiment = client.get_experiment_by_name(settings().experiment)
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    words = f"mlflow experiments restore --experiment-id {experiment.experiment_id}"
    with pytest.raises(TrackingError, match=words), start_run(settings(), params={}):
        pytest.fail("the run was started")


def test_the_store_is_the_setting_then_the_environment_then_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri(Tracking()) == "sqlite:///output/mlflow.db"
    assert page_command(Tracking()) == "mlflow ui --backend-store-uri sqlite:///output/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:word@host:5000")
    assert page_command(Tracking()) == "https://***@host:5000"
    assert tracking_uri(Tracking(uri="databricks")) == "databricks"
