"""One MLflow run, from start to finish. Runs on the driver.

Everything goes through a client with this run's id, never through MLflow's global active run: a notebook may have a
run of its own open. What fails to be recorded while training goes on is a warning, once, and training does not
notice; only a model that cannot be logged or registered is an error.
"""

import importlib.metadata
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import mlflow.pyfunc
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, Metric, Param, RunTag
from mlflow.entities import Run as RunEntity
from mlflow.models import Model
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.git_utils import get_git_commit
from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT, MLFLOW_PARENT_RUN_ID

from sparkdl.errors import RunCancelled, TrackingError
from sparkdl.settings import Tracking
from sparkdl.tracking.interface import LOADER_MODULE, signature
from sparkdl.tracking.params import flatten, masked, without_credentials
from sparkdl.tracking.registry import Registered, register
from sparkdl.tracking.store import check_reachable, connect, experiment_id

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Run", "start_run"]

log = logging.getLogger(__name__)

BATCH = {"params": 100, "metrics": 1000}  # the most that one call of MLflow's REST interface takes
FLUSH_SECONDS = 2.0  # often enough to watch a curve grow
SYSTEM_SECONDS = 5.0
LIBRARIES = ("sparkdl", "torch", "horovod", "pyspark", "petastorm", "pyarrow", "mlflow", "numpy")
RECORDED = ("numpy", "pandas", "pyarrow", "pyspark", "safetensors", "torch")  # what a registered model needs
MAX_DIGEST = 36  # characters that MLflow keeps of a dataset's digest


@contextmanager
def start_run(
    settings: Tracking, *, params: Mapping[str, Any], tags: Mapping[str, str] | None = None, resume: str | None = None
) -> Iterator["Run"]:
    """Open a run, and close it as FINISHED, KILLED (interrupted from the keyboard or cancelled) or FAILED.

    ``resume`` is the id of a run that is continued: its curves go on where they ended, and settings that are others
    now become tags (``resumed.train.epochs``), because MLflow's parameters never change.

    ``params`` is a tree of settings; it is flattened, and secrets in it are masked. Library versions, the git commit
    and what else MLflow knows of the program become tags, and the driver's CPU, memory, disk, network and GPU become
    metrics. Raises :class:`TrackingError` if the store cannot be used.
    """
    client = connect(settings)
    tags = {**_commit(), **resolve_tags(), **_versions(), **(tags or {})}
    try:
        if resume:
            opened = client.get_run(resume)
            client.update_run(resume, status="RUNNING")
        else:
            opened = client.create_run(experiment_id(client, settings), run_name=settings.run_name, tags=tags)
    except TrackingError:
        raise
    except Exception as error:
        what = f"continue the run {resume}" if resume else f"start a run in the experiment {settings.experiment!r}"
        raise TrackingError(f"cannot {what}: {without_credentials(str(error))}") from None
    run = Run(client, settings, opened)
    status = "FAILED"
    try:
        run._open(params)
        yield run
        status = "FINISHED"
    except (KeyboardInterrupt, SystemExit, GeneratorExit, RunCancelled):
        status = "KILLED"
        raise
    finally:
        run._close(status)


class Run:
    """An open run; made by :func:`start_run`."""

    def __init__(self, client: MlflowClient, settings: Tracking, opened: RunEntity) -> None:
        self.run_id: str = opened.info.run_id
        self._client, self._settings, self._experiment = client, settings, opened.info.experiment_id
        self._params = opened.data.params
        self._last_steps = {metric.key: metric.step for metric in opened.data._metric_objs}
        self._metrics: list[Metric] = []
        self._lock = threading.Lock()
        self._delivery = threading.Lock()
        self._warned = False
        self._closing = threading.Event()
        self._flusher = threading.Thread(target=self._flush_regularly, name="mlflow-metrics", daemon=True)
        self._monitor: SystemMetricsMonitor | None = None

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record numbers at a step. Returns at once; they are sent in batches in the background.

        A curve never goes back: numbers at or before its last step are left out, because a restarted attempt takes
        steps again that have been recorded.
        """
        now = time.time_ns() // 1_000_000
        with self._lock:
            new = {name: value for name, value in metrics.items() if step > self._last_steps.get(name, step - 1)}
            self._last_steps |= dict.fromkeys(new, step)
            self._metrics += [Metric(name, float(value), now, step) for name, value in new.items()]

    def log_dataset(self, *, name: str, digest: str, source: str, card: str) -> None:
        """Record the dataset that the run reads: its digest, where it lies, and its card (JSON)."""
        dataset = Dataset(
            name=name,
            digest=digest[:MAX_DIGEST],
            source_type="petastorm",
            source=json.dumps({"uri": without_credentials(source), "digest": digest}),
            profile=card,
        )
        entry = DatasetInput(dataset, tags=[InputTag("mlflow.data.context", "training")])
        self._attempt("the dataset", lambda: self._client.log_inputs(self.run_id, [entry]))
        self._attempt("the dataset's card", lambda: self._client.log_text(self.run_id, card, "card.json"))

    def log_figure(self, figure: "Figure", name: str) -> None:
        """Record a picture, for example as ``loss.png``."""
        self._attempt(name, lambda: self._client.log_figure(self.run_id, figure, name))

    def log_child(
        self,
        name: str,
        *,
        params: Mapping[str, Any],
        history: Sequence[Mapping[str, float]],
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Record a part of this run that is over as a run of its own below this one, with metrics by step (from 1)."""
        now = time.time_ns() // 1_000_000
        metrics = [
            Metric(key, float(value), now, step)
            for step, figures in enumerate(history, start=1)
            for key, value in figures.items()
        ]

        def record() -> None:
            created = self._client.create_run(
                self._experiment, run_name=name, tags={MLFLOW_PARENT_RUN_ID: self.run_id, **(tags or {})}
            )
            flat = [Param(key, value) for key, value in flatten(params).items()]
            self._client.log_batch(created.info.run_id, metrics=metrics, params=flat)
            self._client.set_terminated(created.info.run_id, "FINISHED")

        self._attempt(name, record)

    def log_artifact(self, path: str | Path) -> None:
        """Record a file or a folder as it is."""
        self._attempt(str(path), lambda: self._client.log_artifact(self.run_id, str(path)))

    def log_model(self, folder: str | Path, *, inputs: Mapping[str, str], example: "pd.DataFrame | None" = None) -> str:
        """Record a model folder (network, card, preprocessing) as an MLflow model; returns its address.

        ``inputs`` are the raw columns that the model reads, by name and Spark SQL type; ``example`` a few raw rows.
        Raises :class:`TrackingError` if it cannot be recorded: a run without its model is of no use.
        """
        logging.getLogger("mlflow.pyfunc").setLevel(logging.WARNING)  # it tells that it tries the example
        try:
            check_reachable(str(self._client.tracking_uri))
            logged = self._client.create_logged_model(self._experiment, name="model", source_run_id=self.run_id)
            with TemporaryDirectory() as scratch:
                data, whole = Path(scratch, "model"), Path(scratch, "whole")
                shutil.copytree(folder, data)  # under this name, whatever the caller's folder is called
                mlflow.pyfunc.save_model(
                    whole,
                    loader_module=LOADER_MODULE,
                    data_path=str(data),
                    mlflow_model=Model(
                        artifact_path=logged.artifact_location,
                        run_id=self.run_id,
                        model_uuid=logged.model_id,
                        model_id=logged.model_id,
                    ),
                    signature=signature(inputs),
                    input_example=example,
                    pip_requirements=[f"{name}=={_version(name)}" for name in RECORDED],  # guessing them is slow
                )
                self._client.log_model_artifacts(logged.model_id, str(whole))
            self._client.finalize_logged_model(logged.model_id, "READY")
            self._client.log_outputs(self.run_id, [LoggedModelOutput(logged.model_id, step=0)])
        except TrackingError:
            raise
        except Exception as error:
            raise TrackingError(f"the model could not be logged to run {self.run_id}: {error}") from error
        return f"models:/{logged.model_id}"

    def register(self, model_uri: str, metrics: Mapping[str, float]) -> Registered:
        """Register a logged model under the configured name, and move the alias if the gate allows it.

        Raises :class:`~sparkdl.errors.RegistryError` if the registry refuses, :class:`TrackingError` if nobody answers.
        """
        check_reachable(str(self._client.tracking_uri))
        return register(self._client, model_uri, self._settings, run_id=self.run_id, metrics=metrics)

    def _open(self, params: Mapping[str, Any]) -> None:
        flattened = flatten(params)
        flat = [Param(name, value) for name, value in flattened.items() if name not in self._params]
        changed = [
            RunTag(f"resumed.{name}", value)
            for name, value in flattened.items()
            if name in self._params and self._params[name] != value
        ]
        self._attempt("changed settings", lambda: self._client.log_batch(self.run_id, tags=changed))
        for start in range(0, len(flat), BATCH["params"]):
            batch = flat[start : start + BATCH["params"]]
            self._attempt("parameters", partial(self._client.log_batch, self.run_id, params=batch))
        self._attempt("settings", lambda: self._client.log_dict(self.run_id, masked(params), "settings.json"))
        self._flusher.start()
        self._attempt("system metrics", self._watch_system)

    def _watch_system(self) -> None:
        logging.getLogger("mlflow.system_metrics").setLevel(logging.WARNING)
        self._monitor = SystemMetricsMonitor(  # type: ignore[no-untyped-call]
            self.run_id, sampling_interval=SYSTEM_SECONDS, tracking_uri=self._client.tracking_uri
        )
        self._monitor.start()  # type: ignore[no-untyped-call]

    def _close(self, status: str) -> None:
        self._closing.set()
        if self._flusher.is_alive():
            self._flusher.join()
        if self._monitor is not None:
            self._attempt("system metrics", self._monitor.finish)
        self._flush()
        if self._metrics:
            log.warning("%d metric values of run %s were never delivered", len(self._metrics), self.run_id)
        self._attempt("the end of the run", lambda: self._client.set_terminated(self.run_id, status))

    def _flush_regularly(self) -> None:
        while not self._closing.wait(FLUSH_SECONDS):
            self._flush()

    def _flush(self) -> None:
        """Send what has come together; what cannot be sent is kept for the next time."""
        while self._metrics:
            with self._lock:
                batch = self._metrics[: BATCH["metrics"]]
            if not self._attempt("metrics", partial(self._client.log_batch, self.run_id, metrics=batch)):
                return
            with self._lock:
                del self._metrics[: len(batch)]

    def _attempt(self, what: str, call: Callable[[], Any]) -> bool:
        """Do it; if it fails, warn the first time and go on."""
        try:
            with self._delivery:
                check_reachable(str(self._client.tracking_uri))  # asking first is what keeps a dead server cheap
                call()
        except Exception as error:
            message = "%s could not be recorded in MLflow (%s); training goes on without"
            log.log(logging.DEBUG if self._warned else logging.WARNING, message, what, without_credentials(str(error)))
            self._warned = True
            return False
        return True


def _versions() -> dict[str, str]:
    """``version.torch`` and so on, for the libraries that decide a result."""
    return {f"version.{name}": version for name in LIBRARIES if (version := _version(name))}


def _commit() -> dict[str, str]:
    """The git commit of the working folder; MLflow itself looks where the program's file lies, and is asked after."""
    commit = get_git_commit(".")
    return {MLFLOW_GIT_COMMIT: commit} if commit else {}


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
