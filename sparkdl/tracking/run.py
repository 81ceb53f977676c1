"""Records of a run: metrics, files, models. Runs on the driver.

Nothing here talks to MLflow. Each record becomes an entry in the run's journal on disk, and a courier delivers entries
in order in the background. So a store that is slow or does not answer does not delay training. Only calls with a result
(a model's address, a registered version) wait for the store, for a limited time.
"""

import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from mlflow.models import Model
from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

from sparkdl.errors import RegistryError, TrackingError
from sparkdl.masking import masked, without_credentials
from sparkdl.settings import Tracking
from sparkdl.tracking.courier import Courier
from sparkdl.tracking.journal import Journal
from sparkdl.tracking.original import Original
from sparkdl.tracking.registry import Registered
from sparkdl.tracking.saved_model import save_model
from sparkdl.tracking.store import tracking_uri
from sparkdl.tracking.translate import RANKED, flatten, signature, with_params

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PREFIX", "Run"]

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 5.0  # between samples of the driver's machine; MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL overrides it
PREFIX = "system/"  # MLflow's page shows metrics with this prefix separately


class Run:
    """An open run; created by :func:`~sparkdl.tracking.start_run`."""

    def __init__(self, run_id: str, settings: Tracking, journal: Journal, courier: Courier) -> None:
        self.run_id = run_id
        """The run's id in MLflow. A run that was started offline has a temporary id, which becomes its tag
        ``sparkdl.created_as`` when it is delivered."""
        self._settings, self._journal, self._courier = settings, journal, courier
        self._models: dict[str, str] = {}

    @property
    def in_store(self) -> bool:
        """Whether MLflow has the run, so that other runs can be nested in it."""
        return "run_id" in self._journal.header

    @property
    def address(self) -> str:
        """The run's name, with a link if MLflow has a page for it."""
        uri = without_credentials(tracking_uri(self._settings))
        page = f", {uri.rstrip('/')}/#/runs/{self.run_id}" if uri.startswith("http") else ""
        return f"run {self._settings.run_name or self.run_id}{page}"

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record metrics at a step. If a metric already has the step, as after a restart, its first value stays."""
        numbers = {name: float(value) for name, value in metrics.items()}
        self._journal.append("metrics", {"time": _now(), "step": step, "metrics": numbers})

    def log_dataset(self, *, name: str, digest: str, source: str, card: str) -> None:
        """Record the dataset that the run reads: its digest, its location, and its card (JSON)."""
        card, uri = without_credentials(card), without_credentials(source)
        content = {"name": name, "digest": digest, "source": json.dumps({"uri": uri, "digest": digest}), "card": card}
        self._journal.append("dataset", content)
        self.log_text(card, "card.json")

    def log_figure(self, figure: "Figure", name: str) -> None:
        """Record a picture, for example as ``loss.png``."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas: Any = FigureCanvasAgg(figure)  # figure.savefig writes the same, but draws twice if there is a layout
        self._log_files(name, lambda folder: canvas.print_png(folder / name))

    def log_artifact(self, path: str | Path) -> None:
        """Record a file or a folder as it is now."""
        path = Path(path)
        copy = shutil.copytree if path.is_dir() else shutil.copy2
        self._log_files(str(path), lambda folder: copy(path, folder / path.name))

    def log_text(self, text: str, name: str) -> None:
        """Record a text as a file of this name."""
        self._log_files(name, lambda folder: (folder / name).write_text(text))

    def log_child(
        self,
        name: str,
        *,
        params: Mapping[str, Any],
        history: Sequence[Mapping[str, float]],
        tags: Mapping[str, str] | None = None,
        key: str | None = None,
        status: Literal["FINISHED", "FAILED", "KILLED"] = "FINISHED",
    ) -> None:
        """Record a finished part of this run as a child run, with metrics by step (from 1).

        Children with the same ``key`` are recorded once, also if another process has recorded one before.
        """
        figures = [{key: float(value) for key, value in figures.items()} for figures in history]
        tags = {key: without_credentials(value) for key, value in (tags or {}).items()}
        content = {"name": name, "params": flatten(params), "history": figures, "tags": tags, "status": status}
        content |= {"key": key} if key else {}
        self._journal.append("child", {"time": _now(), **content})

    def log_model(
        self,
        folder: str | Path,
        *,
        inputs: Mapping[str, str],
        outputs: Mapping[str, str] = RANKED,
        example: "pd.DataFrame | None" = None,
        metadata: Mapping[str, Any] | None = None,
        requirements: Sequence[str] = (),
        params: Mapping[str, str | int] | None = None,
    ) -> str:
        """Record a model folder (network, card, preprocessing) as an MLflow model; returns its address.

        ``inputs`` are the raw columns that the model reads, by name and Spark SQL type. ``outputs`` are the columns
        that it adds, by default a classifier's. ``example`` has a few raw rows, ``metadata`` is shown by MLflow,
        ``requirements`` are packages that the model needs in addition to those of every model, and ``params`` are
        scoring parameters with their defaults. If the store cannot be reached, the address is that of a local folder in
        the run's journal, with which one can score, too, until ``sparkdl sync`` has delivered it. Raises
        :class:`TrackingError` if the model cannot be described or the store refuses it, because a run without its model
        is useless.
        """
        described = signature(inputs, outputs, params)
        return self._log_model(
            folder,
            Model(run_id=self.run_id, metadata=dict(metadata or {})),
            requirements,
            signature=described,
            input_example=example,
        )

    def log_model_made_from(
        self,
        original: Original,
        folder: str | Path,
        *,
        requirements: Sequence[str] = (),
        params: Mapping[str, str | int] | None = None,
    ) -> str:
        """Record a model that is made from another model, with that model's columns, example and metadata.

        ``requirements`` and ``params`` as for :meth:`log_model`.
        """
        theirs = original.model
        described = with_params(theirs.signature, params)
        example = theirs.saved_input_example_info
        model = Model(run_id=self.run_id, metadata=theirs.metadata, saved_input_example_info=example)
        return self._log_model(folder, model, requirements, original=original, signature=described)

    def register(
        self, model_uri: str, metrics: Mapping[str, float], *, kept: Mapping[str, Any] | None = None
    ) -> Registered | None:
        """Register a logged model under the configured name, and move the alias if the gate allows it.

        ``kept`` has the version's further properties: ``tags``, ``description``, ``run_link``. Returns None if the
        store cannot be reached; ``sparkdl sync`` then registers the model. A model becomes only one version however
        often it is registered. Raises :class:`~sparkdl.errors.RegistryError` if the registry refuses.
        """
        if not self._settings.register_as:
            raise RegistryError("there is no name to register the model as; set tracking.register_as")
        settings = self._settings.model_dump(include={"register_as", "alias", "gate"})
        model = self._models.get(model_uri, model_uri.removeprefix("models:/"))
        content = {"model": model, "metrics": {name: float(value) for name, value in metrics.items()}}
        content |= {"kept": dict(kept)} if kept else {}
        entry = self._journal.append("register", {**content, "settings": settings})
        if self._courier.wait_for(entry, uploading=True):
            registered: Registered = entry.answer.result()
            return registered
        log.warning("the model will be registered as %r by `sparkdl sync`", self._settings.register_as)
        return None

    def open(self, params: Mapping[str, Any], *, resumed: bool, uri: str, first_sample: int) -> None:
        """Record the settings, start the delivery, and sample the machine; samples count from ``first_sample``."""
        if not resumed:
            self._journal.append("params", {"params": flatten(params)})
        name = f"settings_resumed_{time.strftime('%Y%m%d_%H%M%S')}.json" if resumed else "settings.json"
        self.log_text(json.dumps(masked(params), indent=2), name)
        self._courier.start()
        self._watch = SystemWatch(
            lambda metrics, step: self.log_metrics(metrics, step=step), first_step=first_sample, uri=uri
        )
        self._watch.start()

    def close(self, status: str) -> None:
        """Record the final status, and wait for a limited time until all entries are delivered."""
        self._watch.stop()
        end = {"status": status, "time": _now(), "opened_as": self._journal.header["opened_as"]}
        entry = self._journal.append("end", end)
        self._journal.note(ended=True)
        if status == "KILLED":
            self._courier.hurry()
        try:
            if not self._courier.wait_for(entry, uploading=False):
                log.warning(
                    "%d records of run %s are kept in %s (%s); deliver them with `sparkdl sync`",
                    *(
                        len(self._journal.pending),
                        self.run_id,
                        self._journal.folder,
                        self._courier.outage or "no answer",
                    ),
                )
        finally:
            self._courier.stop()

    def _log_model(
        self,
        folder: str | Path,
        model: Model,
        requirements: Sequence[str],
        *,
        original: Original | None = None,
        **described: Any,
    ) -> str:
        try:
            place = self._journal.place()
            save_model(place, folder, model, requirements, original=original, **described)
        except Exception as error:
            reason = without_credentials(str(error))
            raise TrackingError(f"the model could not be logged to run {self.run_id}: {reason}") from None
        entry = self._journal.append("model", {"files": place.name})
        if self._courier.wait_for(entry, uploading=True):
            return str(entry.answer.result())
        self._journal.note(handed_out=True)
        self._models[str(place / "model")] = str(entry.number)
        log.warning("the model is kept in %s until `sparkdl sync` delivers it", place / "model")
        return str(place / "model")

    def _log_files(self, what: str, write: Callable[[Path], Any]) -> None:
        """Save files with their entry; on failure, log a warning, and training continues."""
        try:
            place = self._journal.place()
            write(place)
        except Exception as error:
            log.warning("%s could not be recorded: %s", what, without_credentials(str(error)))
        else:
            self._journal.append("files", {"files": place.name})


def _now() -> int:
    return time.time_ns() // 1_000_000


class SystemWatch(threading.Thread):
    """Samples MLflow's system metrics and passes them to ``record(metrics, step)``.

    MLflow's own monitor sends them itself, and stops at the first call that fails.
    """

    def __init__(self, record: Callable[[Mapping[str, float], int], None], *, first_step: int, uri: str) -> None:
        super().__init__(name="mlflow-system-metrics", daemon=True)
        logging.getLogger("mlflow.system_metrics").setLevel(logging.WARNING)
        self._record, self._step = record, first_step
        self._monitor = SystemMetricsMonitor(  # type: ignore[no-untyped-call]
            "", sampling_interval=SAMPLE_SECONDS, tracking_uri=uri
        )
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Stop at once."""
        self._stopped.set()
        self.join()

    def run(self) -> None:
        """Take a sample every few seconds."""
        while True:
            self._monitor.collect_metrics()  # type: ignore[no-untyped-call]
            if self._stopped.wait(self._monitor.sampling_interval):
                return
            metrics = self._monitor.aggregate_metrics()  # type: ignore[no-untyped-call]
            for gauge in self._monitor.monitors:
                gauge.clear_metrics()  # type: ignore[no-untyped-call]
            self._record({f"{PREFIX}{name}": value for name, value in metrics.items()}, self._step)
            self._step += 1
