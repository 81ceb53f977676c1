"""Sends the entries of a journal to MLflow: in order, and exactly once despite failures. Runs on the driver.

The answer to a call may be lost although the store has carried it out. So after a failure, and when a journal is opened
again, the store is asked what it already has before anything is sent again. Runs are recognised by a tag with the
number of their entry, models by the digest of their files, metrics by their step, and a registered version by its
model. All other calls may be repeated without effect.
"""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, LoggedModelStatus, Metric, Param, RunTag
from mlflow.entities import Run as RunEntity
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.utils.mlflow_tags import MLFLOW_PARENT_RUN_ID

from sparkdl.errors import RegistryError, TrackingError
from sparkdl.settings import Tracking
from sparkdl.storage import hash_folder
from sparkdl.tracking.journal import Entry, Journal
from sparkdl.tracking.registry import Registered, register
from sparkdl.tracking.store import check_reachable, connect, is_refusal, told
from sparkdl.tracking.surroundings import Surroundings, find_experiment

__all__ = ["CREATED_AS", "OPENED_AS", "Delivery"]

log = logging.getLogger(__name__)

CREATED_AS = "sparkdl.created_as"
"""The tag by which runs and models are recognised after they were created."""
OPENED_AS = "sparkdl.opened_as"
"""The tag that identifies the process that started or resumed the run last."""
BATCH = 500  # entries; MLflow's client splits batches that are too large for one call
SETTLE_SECONDS = 2.0  # for a server that was frozen, and first carries out earlier calls
MAX_DIGEST = 36  # the most characters that MLflow stores of a dataset's digest


class Delivery:
    """Sends the entries of a journal to the store that the settings name."""

    def __init__(self, journal: Journal, settings: Tracking, *, client: MlflowClient | None = None) -> None:
        self._journal, self._settings, self._connected = journal, settings, client
        self._doubt = client is None or bool(journal.pending)
        self._experiment = ""
        self._curves: dict[str, Curves] = {}
        """The metrics that the store has, by run."""
        self._send: dict[str, Callable[[Entry], Any]] = {
            "params": self._params,
            "dataset": self._dataset,
            "files": self._files,
            "child": self._child,
            "model": self._model,
            "register": self._register,
            "reopen": self._reopen,
            "end": self._end,
        }

    def deliver(self, *, going_on: Callable[[], bool] = lambda: True) -> None:
        """Send all pending entries, as long as ``going_on`` returns true.

        Raises :class:`TrackingError`, with the reason, if the store cannot take an entry now; that entry and all later
        ones stay pending.
        """
        try:
            while going_on() and (entries := self._journal.head(BATCH)):
                self._deliver(entries if entries[0].kind == "metrics" else entries[:1])
        except Exception as error:
            self._doubt = True
            raise TrackingError(told(error)) from None

    @property
    def _client(self) -> MlflowClient:
        if self._connected is None:
            self._connected = connect(self._settings)
        return self._connected

    def _deliver(self, entries: list[Entry]) -> None:
        check_reachable(str(self._client.tracking_uri))  # a quick check: MLflow would wait long
        try:
            if entries[0].kind == "metrics":
                self._metrics(entries)
            answer = None if entries[0].kind == "metrics" else self._send[entries[0].kind](entries[0])
        except Exception as error:
            if not is_refusal(error):
                raise
            self._run()  # raises an error of its own if the whole run was deleted
            if len(entries) > 1:
                for entry in entries:
                    self._deliver([entry])
                return
            reason = told(error)
            log.warning("MLflow refuses %s of run %s: %s", entries[0].kind, self._journal.header["run_id"], reason)
            kind = RegistryError if isinstance(error, RegistryError) else TrackingError
            entries[0].answer.set_exception(kind(reason))
        else:
            for entry in entries:
                entry.answer.set_result(answer)
        self._journal.delivered(entries)
        self._doubt = self._doubt and bool(self._journal.pending)

    def _run(self) -> RunEntity:
        """The run in the store, which is created now if it was started offline."""
        run_id = self._journal.header.get("run_id")
        if run_id:
            try:
                run = self._client.get_run(run_id)
            except MlflowException as error:
                raise TrackingError(f"the run {run_id} cannot be read: {error.message}") from None
            if run.info.lifecycle_stage == "deleted":
                raise TrackingError(f"the run {run_id} was deleted; restore it (mlflow runs restore --run-id {run_id})")
        else:
            run = self.create()
        self._experiment = run.info.experiment_id
        return run

    def create(self) -> RunEntity:
        """Create the run that the journal's header describes, unless it exists."""
        header = self._journal.header
        experiment = find_experiment(
            self._client, Surroundings(header.get("parent"), header["experiment"], header.get("experiment_id"))
        )
        try:
            run = self._created(experiment, header["tags"][CREATED_AS]) or self._client.create_run(
                experiment, start_time=header["started"], run_name=header["run_name"], tags=header["tags"]
            )
        except Exception:
            self._doubt = True
            raise
        self._journal.note(run_id=run.info.run_id)
        return run

    @property
    def _run_id(self) -> str:
        if not self._experiment:
            self._run()
        return str(self._journal.header["run_id"])

    def _created(self, experiment: str, key: str) -> RunEntity | None:
        """The run that was created with this key; the store is only asked after a failure or a restart."""
        return self._find_created(experiment, key) if self._doubt else None

    def _find_created(self, experiment: str, key: str) -> RunEntity | None:
        return next(iter(self._client.search_runs([experiment], f"tags.`{CREATED_AS}` = '{key}'")), None)

    def _key(self, entry: Entry) -> str:
        return f"{self._journal.folder.name}-{entry.number}"

    def _metrics(self, entries: Iterable[Entry]) -> None:
        metrics = [
            Metric(key, value, entry.content["time"], entry.content["step"])
            for entry in entries
            for key, value in entry.content["metrics"].items()
        ]
        self._log_metrics(self._run_id, metrics)

    def _log_metrics(self, run_id: str, metrics: list[Metric]) -> None:
        """Send the metrics whose steps the store does not have yet.

        A step is sent again if an answer was lost, or if another attempt or a resumed run repeats the step.
        """
        if self._doubt or run_id not in self._curves:
            self._curves[run_id] = Curves(self._client, run_id)
        new = self._curves[run_id].without(metrics)
        self._client.log_batch(run_id, metrics=new)
        self._curves[run_id].add(new)

    def _params(self, entry: Entry) -> None:
        self._client.log_batch(self._run_id, params=[Param(*pair) for pair in entry.content["params"].items()])

    def _dataset(self, entry: Entry) -> None:
        content = entry.content
        dataset = Dataset(
            name=content["name"],
            digest=content["digest"][:MAX_DIGEST],
            source_type="petastorm",
            source=content["source"],
            profile=content["card"],
        )
        tags = [InputTag("mlflow.data.context", "training")]
        try:
            self._client.log_inputs(self._run_id, [DatasetInput(dataset, tags=tags)])
        except (
            MlflowException
        ):  # if two runs log a new dataset at the same time, MLflow refuses one, which succeeds now
            self._client.log_inputs(self._run_id, [DatasetInput(dataset, tags=tags)])

    def _files(self, entry: Entry) -> None:
        for path in self._journal.files(entry).iterdir():
            self._client.log_artifact(self._run_id, str(path))

    def _child(self, entry: Entry) -> None:
        content, parent = entry.content, self._run_id
        own = f"{parent}-{content['key']}" if "key" in content else None
        key = own or self._key(entry)
        known = self._find_created(self._experiment, own) if own else self._created(self._experiment, key)
        child = known or self._client.create_run(
            self._experiment,
            run_name=content["name"],
            tags={MLFLOW_PARENT_RUN_ID: parent, CREATED_AS: key, **content["tags"]},
        )
        metrics = [
            Metric(name, value, content["time"], step)
            for step, figures in enumerate(content["history"], start=1)
            for name, value in figures.items()
        ]
        self._client.log_batch(child.info.run_id, params=[Param(*pair) for pair in content["params"].items()])
        self._log_metrics(child.info.run_id, metrics)
        self._client.set_terminated(child.info.run_id, content.get("status", "FINISHED"))

    def _model(self, entry: Entry) -> str:
        run_id, folder = self._run_id, self._journal.files(entry) / "model"
        key = f"{run_id}-{hash_folder(str(folder / 'data'))}"  # a run that is resumed at its end logs the model again
        found = self._client.search_logged_models([self._experiment], f"tags.`{CREATED_AS}` = '{key}'")
        logged = next(iter(found), None) or self._client.create_logged_model(
            self._experiment, name="model", source_run_id=run_id, tags={CREATED_AS: key}
        )
        if logged.status != LoggedModelStatus.READY:
            model = Model.load(str(folder))
            model.run_id, model.artifact_path = run_id, logged.artifact_location
            model.model_uuid = model.model_id = logged.model_id
            model.save(str(folder / "MLmodel"))
            self._client.log_model_artifacts(logged.model_id, str(folder))
            self._client.finalize_logged_model(logged.model_id, LoggedModelStatus.READY)
        outputs = self._client.get_run(run_id).outputs
        if logged.model_id not in [output.model_id for output in (outputs.model_outputs if outputs else [])]:
            self._client.log_outputs(run_id, [LoggedModelOutput(logged.model_id, step=0)])
        self._journal.note(models=self._journal.header.get("models", {}) | {str(entry.number): logged.model_id})
        return f"models:/{logged.model_id}"

    def _register(self, entry: Entry) -> Registered:
        content = entry.content
        model = self._journal.header.get("models", {}).get(content["model"], content["model"])
        if self._doubt:
            time.sleep(SETTLE_SECONDS)
        settings = Tracking.model_validate(content["settings"])
        asked = {"run_id": self._run_id, "metrics": content["metrics"], "kept": content.get("kept")}
        return register(self._client, f"models:/{model}", settings, **asked)

    def _reopen(self, entry: Entry) -> None:
        run, content = self._run(), entry.content
        now = {"tags": run.data.tags, "params": run.data.params}
        changed = {
            f"resumed.{name}": value
            for kind, known in now.items()
            for name, value in content[kind].items()
            if known.get(name, value) != value
        }
        new = [Param(name, value) for name, value in content["params"].items() if name not in now["params"]]
        tags = {name: value for name, value in content["tags"].items() if name not in now["tags"]} | changed
        tags |= {OPENED_AS: content["opened_as"]}
        self._client.log_batch(run.info.run_id, params=new, tags=[RunTag(*pair) for pair in tags.items()])
        self._client.update_run(run.info.run_id, status="RUNNING")

    def _end(self, entry: Entry) -> None:
        run = self._run()
        if run.data.tags.get(OPENED_AS) == entry.content["opened_as"]:  # not if another process has resumed it since
            self._client.set_terminated(run.info.run_id, entry.content["status"], end_time=entry.content["time"])


class Curves:
    """The steps of one run's metrics in the store, which is asked only for the metrics where it matters."""

    def __init__(self, client: MlflowClient, run_id: str) -> None:
        self._client, self._run_id = client, run_id
        self._ends = {metric.key: metric.step for metric in client.get_run(run_id).data._metric_objs}
        self._steps: dict[str, set[int]] = {}
        """All steps of the metrics for which a step was repeated."""

    def without(self, metrics: Iterable[Metric]) -> list[Metric]:
        """The metrics that the store does not have yet; of several with the same step, the first."""
        new = {(metric.key, metric.step): metric for metric in reversed(list(metrics)) if not self._has(metric)}
        return list(reversed(new.values()))

    def add(self, metrics: Iterable[Metric]) -> None:
        """Note that the store has these metrics."""
        for metric in metrics:
            self._ends[metric.key] = max(metric.step, self._ends.get(metric.key, metric.step))
            if metric.key in self._steps:
                self._steps[metric.key].add(metric.step)

    def _has(self, metric: Metric) -> bool:
        if metric.step > self._ends.get(metric.key, metric.step - 1):
            return False
        if metric.key not in self._steps:
            history = self._client.get_metric_history(self._run_id, metric.key)
            self._steps[metric.key] = {there.step for there in history}
        return metric.step in self._steps[metric.key]
