"""What the driver makes of what a run has measured."""

from pathlib import Path

from mlflow import MlflowClient

from sparkdl.settings import Tracking
from sparkdl.tracking import start_run
from sparkdl.training.checkpoints.checkpoint import save_manifest
from sparkdl.training.tasks import Classification
from sparkdl.training.train import _log_measured

from .checkpoints.test_checkpoint_folder import new_manifest


def test_what_was_measured_up_to_a_checkpoint_is_in_the_curves_once_however_often_a_run_goes_on(
    store: str, tmp_path: Path
) -> None:
    figures = [[step, 1 / step, 0.5, 0.1] for step in range(1, 4)]
    history = [{"train_loss": 0.5}, {"train_loss": 0.25}]
    checkpoint = save_manifest(str(tmp_path / "run"), new_manifest(step=3, epoch=2, history=history, figures=figures))
    with start_run(Tracking(uri=store, experiment="measured", spool=str(tmp_path / "spool")), params={}) as run:
        run.log_metrics({"step_loss": 1.0}, step=1)  # all that came before a rank was killed
        for _ in range(2):
            _log_measured(run, Classification(2), checkpoint)
        run.log_metrics({"step_loss": 0.25}, step=4)
    client = MlflowClient(store)
    steps = [(point.step, point.value) for point in client.get_metric_history(run.run_id, "step_loss")]
    assert steps == [(step, 1 / step) for step in range(1, 5)]
    assert [point.step for point in client.get_metric_history(run.run_id, "train_loss")] == [1, 2]
