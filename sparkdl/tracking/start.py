"""Starts, resumes and ends runs. Runs on the driver.

All calls use a client with the run's id, and never MLflow's active run: a notebook may have a run open, which then is
the parent of this one.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from mlflow import MlflowClient
from mlflow.entities import Run as RunEntity
from mlflow.exceptions import MlflowException
from mlflow.tracking.context.registry import resolve_tags
from mlflow.utils.git_utils import get_git_commit
from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT, MLFLOW_PARENT_RUN_ID

from sparkdl.errors import RunCancelledError, TrackingError
from sparkdl.extras import DISTRIBUTION
from sparkdl.masking import without_credentials
from sparkdl.settings import Tracking
from sparkdl.stack import installed_version
from sparkdl.tracking.courier import Courier
from sparkdl.tracking.delivery import CREATED_AS, OPENED_AS, Delivery
from sparkdl.tracking.journal import Journal, read_header
from sparkdl.tracking.run import PREFIX, Run
from sparkdl.tracking.store import connect, is_refusal, our_calls, told, tracking_uri
from sparkdl.tracking.surroundings import find_experiment, surroundings
from sparkdl.tracking.translate import flatten

__all__ = ["start_run"]

T = TypeVar("T")

log = logging.getLogger(__name__)

LIBRARIES = ("torch", "horovod", "pyspark", "petastorm", "pyarrow", "mlflow", "numpy")


@contextmanager
def start_run(
    settings: Tracking, *, params: Mapping[str, Any], tags: Mapping[str, str] | None = None, resume: str | None = None
) -> Iterator[Run]:
    """Open a run, and close it as FINISHED, KILLED (interrupted from the keyboard or cancelled) or FAILED.

    ``params`` is a tree of settings; it is flattened, and secrets in it are masked. Library versions, the git commit
    and MLflow's own facts about the program become tags, and the use of the driver's CPU, memory, disk, network and
    GPU become metrics. ``resume`` is the id of a run to continue: its curves continue where they ended, and settings
    that have changed become tags (``resumed.train.epochs``), because MLflow's parameters cannot change.

    Raises :class:`TrackingError` if the store cannot be used (unless ``settings.offline``), if there is no run to
    resume, or if another process on this machine has the run open. Later outages of the store raise no error: see
    :mod:`sparkdl.tracking.run`.
    """
    with our_calls():
        tags = {name: without_credentials(value) for name, value in {**_origin(), **(tags or {})}.items()}
        run = _open(settings, params, tags, resume)
        status = "FAILED"
        try:
            yield run
            status = "FINISHED"
        except (KeyboardInterrupt, SystemExit, GeneratorExit, RunCancelledError):
            status = "KILLED"
            raise
        finally:
            run.close(status)


def _open(settings: Tracking, params: Mapping[str, Any], tags: dict[str, str], resume: str | None) -> Run:
    """A new or resumed run with its journal; with ``settings.offline``, also if the store does not answer."""
    uri, spool, local = tracking_uri(settings), Path(settings.spool), uuid4().hex
    run_id = resume or local
    header = {"opened_as": uuid4().hex, "ended": False, "handed_out": False, "store": without_credentials(uri)}
    client: MlflowClient | None = None
    known: RunEntity | None = None
    try:
        client = connected = _patiently(lambda: connect(settings))
        if resume:
            known = _patiently(partial(_find, connected, settings, resume))
    except TrackingError as error:
        if not settings.offline or isinstance(error, NoSuchRunError):
            raise
        log.warning("%s; until then all records are kept in %s, and `sparkdl sync` delivers them", error, spool)
        client = None
    if resume:
        folder = _journal_of(spool, resume)
        if known is not None or folder is None:
            header["run_id"] = known.info.run_id if known else resume
        journal = Journal(folder or spool / local, header)
    else:
        created_as = {CREATED_AS: local, OPENED_AS: header["opened_as"]}
        place = surroundings(settings)
        nested = {MLFLOW_PARENT_RUN_ID: place.parent} if place.parent else {}
        header |= place._asdict() | {"run_name": settings.run_name, "tags": {**tags, **created_as, **nested}}
        journal = Journal(spool / local, header | {"started": time.time_ns() // 1_000_000})
    delivery = Delivery(journal, settings, client=client)
    if resume:
        journal.append("reopen", {"params": flatten(params), "tags": tags, "opened_as": header["opened_as"]})
    elif client:
        try:
            run_id = _patiently(delivery.create).info.run_id
        except BaseException as error:
            if not settings.offline or not isinstance(error, TrackingError):
                journal.note(ended=True)
                journal.close()
                raise
            log.warning("%s; it begins in MLflow when that answers again, or with `sparkdl sync`", error)
    run = Run(run_id, settings, journal, Courier(journal, delivery))
    samples = [metric.step for metric in known.data._metric_objs if metric.key.startswith(PREFIX)] if known else []
    run.open(params, resumed=resume is not None, uri=uri, first_sample=max(samples, default=-1) + 1)
    return run


class NoSuchRunError(TrackingError):
    """The store can be reached, but does not have the run."""


def _find(client: MlflowClient, settings: Tracking, run_id: str) -> RunEntity:
    """A run by its id, or by the temporary id that it had before it was delivered."""
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if not is_refusal(error):
            raise
        experiment = find_experiment(client, surroundings(settings))
        before = re.sub(r"[^\w-]", "", run_id)
        found = client.search_runs([experiment], f"tags.`{CREATED_AS}` = '{before}'")
        if not found:
            raise NoSuchRunError(
                f"cannot resume the run {run_id}: {without_credentials(tracking_uri(settings))} does not have it; is"
                " the address (tracking.uri or MLFLOW_TRACKING_URI) right?"
            ) from None
        run = found[0]
    if run.info.lifecycle_stage == "deleted":
        raise NoSuchRunError(
            f"cannot resume the run {run_id}, it was deleted; restore it (mlflow runs restore --run-id {run_id})"
        )
    return run


def _journal_of(spool: Path, run_id: str) -> Path | None:
    """The journal of this run that an earlier process has left, if any."""
    for folder in Journal.folders(spool):
        try:
            if run_id in (folder.name, read_header(folder).get("run_id")):
                return folder
        except FileNotFoundError:
            continue  # the run's own process has just delivered the rest
        except TrackingError as error:
            log.warning("%s", error)
    return None


def _patiently(call: Callable[[], T]) -> T:
    """Call, and repeat twice if the store fails although it is there. Raises :class:`TrackingError` with the reason."""
    pauses = [1.0, 3.0]  # seconds
    while True:
        try:
            return call()
        except TrackingError:
            raise
        except Exception as error:
            if not pauses or is_refusal(error):
                raise TrackingError(f"cannot start a run: {told(error)}") from None
            time.sleep(pauses.pop(0))


def _origin() -> dict[str, str]:
    """Tags with the origin of a run: program, user, versions of libraries that affect results, and the git commit.

    The commit is that of the working folder; MLflow itself would take that of the program's folder.
    """
    packages = {"sparkdl": DISTRIBUTION} | {name: name for name in LIBRARIES}
    versions = {
        f"version.{name}": version for name, package in packages.items() if (version := installed_version(package))
    }
    commit = get_git_commit(".")
    return {**({MLFLOW_GIT_COMMIT: commit} if commit else {}), **resolve_tags(), **versions}
