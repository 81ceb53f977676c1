"""The parent run and the experiment of a new run. Runs on the driver, in the caller's thread."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Run as RunEntity
from mlflow.environment_variables import MLFLOW_EXPERIMENT_ID, MLFLOW_EXPERIMENT_NAME, MLFLOW_RUN_ID
from mlflow.exceptions import MlflowException

from sparkdl.errors import TrackingError
from sparkdl.masking import without_credentials
from sparkdl.settings import Tracking
from sparkdl.tracking.store import experiment_id, is_refusal, told, tracking_uri

__all__ = ["Surroundings", "active_run", "below", "find_experiment", "surroundings", "under"]

log = logging.getLogger(__name__)

_handed: ContextVar[RunEntity | None] = ContextVar("handed", default=None)
_above: ContextVar[str | None] = ContextVar("above", default=None)


class Surroundings(NamedTuple):
    """The parent and the experiment of a run; the experiment has either a name or an id."""

    parent: str | None
    """The id of the parent run, or None."""
    experiment: str | None
    experiment_id: str | None


def active_run() -> RunEntity | None:
    """The run that this thread has open in MLflow, or the run of :func:`under`."""
    return _handed.get() or mlflow.active_run()


@contextmanager
def under(run: RunEntity | None) -> Iterator[None]:
    """A context in which ``run``, which another thread has open, is this thread's active run.

    MLflow itself keeps active runs by thread.
    """
    token = _handed.set(run)
    try:
        yield
    finally:
        _handed.reset(token)


@contextmanager
def below(run_id: str | None) -> Iterator[None]:
    """A context in which new runs of this thread in the same store are nested in the run with this id."""
    token = _above.set(run_id)
    try:
        yield
    finally:
        _above.reset(token)


def surroundings(settings: Tracking) -> Surroundings:
    """The parent and the experiment of a run that begins now.

    The parent is the run that the caller has open, or else the one that ``MLFLOW_RUN_ID`` names. A run in another store
    cannot be the parent; a log line says so. The experiment is ``tracking.experiment`` if that is set, or else the
    parent's, or else that of ``MLFLOW_EXPERIMENT_NAME`` or ``MLFLOW_EXPERIMENT_ID`` (which ``mlflow.set_experiment``
    sets), or else the default.
    """
    if above := _above.get():
        return Surroundings(above, None, None)
    active, ours, theirs = active_run(), tracking_uri(settings), mlflow.get_tracking_uri()
    same = _place(ours) == _place(theirs)
    if active and not same:
        log.warning(
            "the run %s is open in %s, but this run is recorded in %s, where it has no parent; to nest it, set"
            " tracking.uri to the first",
            active.info.run_id,
            without_credentials(theirs),
            without_credentials(ours),
        )
    parent = (active.info.run_id if active else os.environ.get(MLFLOW_RUN_ID.name)) if same else None
    if "experiment" in settings.model_fields_set:
        return Surroundings(parent, settings.experiment, None)
    if active and parent:
        return Surroundings(parent, None, active.info.experiment_id)
    if parent:
        return Surroundings(parent, None, None)  # the parent's experiment, which the store knows
    if name := os.environ.get(MLFLOW_EXPERIMENT_NAME.name):
        return Surroundings(None, name, None)
    if same and (number := os.environ.get(MLFLOW_EXPERIMENT_ID.name)):
        return Surroundings(None, None, number)
    return Surroundings(None, settings.experiment, None)


def find_experiment(client: MlflowClient, place: Surroundings) -> str:
    """The id of the experiment, which is created if it has a name and is new.

    Raises :class:`TrackingError` if the experiment cannot be used, or the store does not have the parent.
    """
    if place.experiment is not None:
        return experiment_id(client, place.experiment)
    if place.experiment_id is not None:
        return place.experiment_id
    try:
        return str(client.get_run(str(place.parent)).info.experiment_id)
    except MlflowException as error:
        if not is_refusal(error):
            raise
        raise TrackingError(f"there is no run {place.parent}, which {MLFLOW_RUN_ID} names: {told(error)}") from None


def _place(uri: str) -> str:
    """The store's address in a normal form, without user and password, by which stores are compared."""
    parts = urlsplit(without_credentials(uri))
    if parts.scheme == "sqlite":
        return f"sqlite:{os.path.realpath(parts.path[1:])}"
    if parts.scheme in ("", "file"):
        return os.path.realpath(Path(parts.path or uri))
    return parts.geturl().rstrip("/")
