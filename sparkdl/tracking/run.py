"""What can be recorded about a run. Runs on the driver.

Nothing here talks to MLflow: every record becomes an entry of the run's journal, on disk, and a courier delivers them
in order in the background. So a store that is slow, frozen or gone does not hold up training. Only what is asked back
(a model's address, a registered version) is waited for, and not for long.
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

SAMPLE_SECONDS = 5.0  # of the driver's machine; MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL sets another number
PREFIX = "system/"  # where MLflow's page looks for them


class Run:
    """An open run; made by :func:`~sparkdl.tracking.start_run`."""

    def __init__(self, run_id: str, settings: Tracking, journal: Journal, courier: Courier) -> None:
        self.run_id = run_id
        """Its id in MLflow; of a run that was started offline, the id that it has until it is delivered, and as its tag
        ``sparkdl.created_as`` from then on."""
        self._settings, self._journal, self._courier = settings, journal, courier
        self._models: dict[str, str] = {}

    @property
    def in_store(self) -> bool:
        """Whether MLflow has the run, so that others can be nested in it."""
        return "run_id" in self._journal.header

    @property
    def address(self) -> str:
        """The run's name and, where MLflow has a page for it, its link."""
        uri = without_credentials(tracking_uri(self._settings))
        page = f", {uri.rstrip('/')}/#/runs/{self.run_id}" if uri.startswith("http") else ""
        return f"run {self._settings.run_name or self.run_id}{page}"

    def log_metrics(self, metrics: Mapping[str, float], *, step: int) -> None:
        """Record numbers at a step; where a curve has the step already, as after a restart, its first number stays."""
        numbers = {name: float(value) for name, value in metrics.items()}
        self._journal.append("metrics", {"time": _now(), "step": step, "metrics": numbers})

    def log_dataset(self, *, name: str, digest: str, source: str, card: str) -> None:
        """Record the dataset that the run reads: its digest, where it lies, and its card (JSON)."""
        card, uri = without_credentials(card), without_credentials(source)
        content = {"name": name, "digest": digest, "source": json.dumps({"uri": uri, "digest": digest}), "card": card}
        self._journal.append("dataset", content)
        self.log_text(card, "card.json")

    def log_figure(self, figure: "Figure", name: str) -> None:
        """Record a picture, for example as ``loss.png``."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        canvas: Any = FigureCanvasAgg(figure)  # figure.savefig writes the same, and draws twice where there is a layout
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
        """Record a part of this run that is over as a run of its own below this one, with metrics by step (from 1).

        What has the same ``key`` is recorded once, also where another process has recorded it before.
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

        ``inputs`` are the raw columns that the model reads, by name and Spark SQL type, ``outputs`` those that it
        answers, by default a classifier's; ``example`` a few raw rows;
        ``metadata`` what else MLflow shows of it; ``requirements`` the packages that it needs beside those that every
        model needs; ``params`` what a caller may set beside rows, with what is so by default. While the store cannot be
        reached, the address is that of a folder beside the run's other records, which can be scored with as well and
        lasts until ``sparkdl sync`` has delivered it. Raises :class:`TrackingError` if the model cannot be described,
        or the store refuses it: a run without its model is of no use.
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
        """The same for a model folder that is made from another model: it has that one's columns, example and metadata.

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

        ``kept`` is what the version has beside its figures: ``tags``, ``description``, ``run_link``.
        None if the store cannot be reached: then ``sparkdl sync`` does it. However often it is tried, a model becomes
        one version. Raises :class:`~sparkdl.errors.RegistryError` if the registry refuses.
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
        """Record the settings, and start to deliver and to watch the machine, from this sample's number on."""
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
        """Record how it ended, and wait a little for what is not delivered yet."""
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
        """Keep files and their entry; what cannot be kept is told, and training goes on without."""
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
    """Reads MLflow's own gauges and hands the numbers to ``record(metrics, step)``.

    MLflow's monitor would also send them, and give up at the first call that fails.
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
        """End at once."""
        self._stopped.set()
        self.join()

    def run(self) -> None:
        """A sample every few seconds."""
        while True:
            self._monitor.collect_metrics()  # type: ignore[no-untyped-call]
            if self._stopped.wait(self._monitor.sampling_interval):
                return
            metrics = self._monitor.aggregate_metrics()  # type: ignore[no-untyped-call]
            for gauge in self._monitor.monitors:
                gauge.clear_metrics()  # type: ignore[no-untyped-call]
            self._record({f"{PREFIX}{name}": value for name, value in metrics.items()}, self._step)
            self._step += 1
