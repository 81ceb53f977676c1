"""MLflow's store: its address, whether it can be reached, and its errors. Runs on the driver."""

import logging
import os
import re
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import urlsplit

import requests
from mlflow import MlflowClient
from mlflow.entities import Experiment
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES, MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT
from mlflow.exceptions import MlflowException
from mlflow.utils.credentials import get_default_host_creds
from pydantic import ValidationError
from requests.utils import get_environ_proxies

from sparkdl.errors import RegistryError, TrackingError
from sparkdl.masking import without_credentials
from sparkdl.settings import Tracking

__all__ = [
    "check_reachable",
    "connect",
    "experiment_id",
    "is_refusal",
    "on_databricks",
    "our_calls",
    "page_command",
    "refuse_deleted",
    "sqlite_folder",
    "told",
    "tracking_uri",
]

DEFAULT_URI = "sqlite:///output/mlflow.db"
REACH_SECONDS = 10.0  # a working server answers in milliseconds; MLflow's own retries would take four minutes
OURS = {MLFLOW_HTTP_REQUEST_MAX_RETRIES.name: "0", MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.name: "true"}
LOOPBACK = ("localhost", "127.0.0.1", "::1")
REFUSALS = {"BAD_REQUEST", "INVALID_PARAMETER_VALUE", "RESOURCE_ALREADY_EXISTS", "RESOURCE_DOES_NOT_EXIST"}


def tracking_uri(settings: Tracking) -> str:
    """The store's address: ``tracking.uri``, else ``MLFLOW_TRACKING_URI``, else SQLite under ``output``."""
    return settings.uri or os.environ.get("MLFLOW_TRACKING_URI") or DEFAULT_URI


def page_command(settings: Tracking) -> str:
    """The command that starts MLflow's web page, or the page's address if a server already runs."""
    uri = tracking_uri(settings)
    if urlsplit(uri).scheme in ("http", "https"):
        return without_credentials(uri)
    if uri.startswith("databricks"):
        return "the Experiments page of the Databricks workspace"
    return f"mlflow ui --backend-store-uri {without_credentials(uri)}"


def connect(settings: Tracking) -> MlflowClient:
    """A client of the configured store; the schema of a database is created at first use.

    Raises :class:`TrackingError` if the store cannot be reached.
    """
    uri = tracking_uri(settings)
    check_reachable(uri)
    if folder := sqlite_folder(uri):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TrackingError(
                f"cannot keep MLflow's records in {folder}: {error.strerror}; set tracking.uri to a place that can"
                " be written"
            ) from error
    logging.getLogger("mlflow.store.db").setLevel(logging.WARNING)  # it logs each table that it creates
    try:
        client = MlflowClient(tracking_uri=uri, registry_uri=os.environ.get("MLFLOW_REGISTRY_URI"))
        client.search_experiments(max_results=1)
    except Exception as error:
        raise _unusable(uri, error) from None
    return client


def experiment_id(client: MlflowClient, name: str) -> str:
    """The id of the experiment with this name, which is created if it is new.

    Raises :class:`TrackingError` if the experiment was deleted or may not be created.
    """
    try:
        found = client.get_experiment_by_name(name)
        if found is None:
            folder = sqlite_folder(str(client.tracking_uri))
            artifacts = (folder.resolve() / "mlartifacts").as_uri() if folder else None
            try:
                return str(client.create_experiment(name, artifact_location=artifacts))
            except MlflowException:
                found = client.get_experiment_by_name(name)
                if found is None:  # otherwise another run has just created it, such as another fit of a grid search
                    raise
    except MlflowException as error:
        if not is_refusal(error):
            raise
        raise TrackingError(f"cannot use the MLflow experiment {name!r}: {told(error)}") from None
    refuse_deleted(found)
    return str(found.experiment_id)


def refuse_deleted(experiment: Experiment | None) -> None:
    """Raise :class:`TrackingError` for an experiment that was deleted."""
    if experiment and experiment.lifecycle_stage == "deleted":
        raise TrackingError(
            f"the MLflow experiment {experiment.name!r} was deleted; restore it (mlflow experiments restore"
            f" --experiment-id {experiment.experiment_id}) or set another name in tracking.experiment"
        )


def check_reachable(uri: str) -> None:
    """Check that there is a server at an http address, with any answer; other kinds of stores are not checked.

    TLS certificates are used as configured for MLflow. Raises :class:`TrackingError` if there is no answer within
    :data:`REACH_SECONDS`.
    """
    if urlsplit(uri).scheme not in ("http", "https"):
        return
    _past_proxies(uri)
    try:
        parts = urlsplit(uri)
        bare = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        tls = get_default_host_creds(bare)  # type: ignore[no-untyped-call]
        requests.get(  # access rights are checked by later calls
            f"{bare.rstrip('/')}/health",
            timeout=REACH_SECONDS,
            allow_redirects=False,
            verify=tls.verify,
            cert=tls.client_cert_path,
            stream=True,
        ).close()
    except (OSError, MlflowException) as error:
        raise _unusable(uri, error) from None


class _OurCalls:
    """Sets environment variables when the first of overlapping contexts begins, and restores them after the last.

    Contexts of several threads may overlap.
    """

    def __init__(self) -> None:
        self._lock, self._users = threading.Lock(), 0
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._before = {name: os.environ.get(name) for name in OURS}
                os.environ.update(OURS)
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                for name, value in self._before.items():
                    os.environ.pop(name)
                    os.environ.update({name: value} if value is not None else {})


_our_calls = _OurCalls()


def our_calls() -> AbstractContextManager[None]:
    """A context in which MLflow does not repeat calls by itself, and does not print its address.

    If an answer is lost, MLflow's own repetition would create a run or register a model twice; sparkdl checks first.
    The address that MLflow prints at the end of a run contains the password. MLflow reads both settings only from the
    environment, so that they apply to the whole process while any thread is in the context.
    """
    return _our_calls


def _past_proxies(uri: str) -> None:
    """Exempt a server on this machine from proxies, until the process ends.

    MLflow looks up the environment's proxy for each call; the user's proxies for other servers stay.
    """
    if urlsplit(uri).hostname in LOOPBACK and get_environ_proxies(uri):
        before = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
        os.environ["no_proxy"] = ",".join([*filter(None, [before]), *LOOPBACK])


def on_databricks(client: MlflowClient) -> bool:
    """Whether the registry is that of Databricks, which locates and serves files differently."""
    return str(client._registry_uri).startswith("databricks")


def told(error: Exception) -> str:
    """The message of an error, without credentials and without the errors that wrap it."""
    text = without_credentials(str(error) or type(error).__name__)
    return re.sub(r"(?s)HTTPS?ConnectionPool.*Caused by (.*)\)$", r"\1", text)


def is_refusal(error: Exception) -> bool:
    """Whether the store has refused a call, so that repeating it is useless."""
    if isinstance(error, MlflowException):
        return error.error_code in REFUSALS
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return error.response.status_code in (400, 413)
    return isinstance(error, RegistryError | FileNotFoundError | ValidationError)


def sqlite_folder(uri: str) -> Path | None:
    """The folder of a SQLite store, which has the artifacts, too; None for other stores."""
    parts = urlsplit(uri)
    return Path(parts.path[1:]).parent if parts.scheme == "sqlite" and parts.path not in ("", "/") else None


def _unusable(uri: str, error: Exception) -> TrackingError:
    return TrackingError(
        f"cannot use the tracking store {without_credentials(uri)}: {told(error)}; is it running,"
        " and is the address (tracking.uri or MLFLOW_TRACKING_URI) right?"
    )
