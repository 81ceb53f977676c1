"""Registered models: a new version, whether the alias moves to it, and the way back from a name to its files.

Runs on the driver.
"""

import atexit
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient, artifacts
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

from sparkdl.errors import ConfigError, RegistryError
from sparkdl.masking import without_credentials
from sparkdl.settings import Gate, Tracking
from sparkdl.tracking.interface import LOADER_MODULE
from sparkdl.tracking.store import connect, is_refusal

__all__ = ["Registered", "check_gate", "download", "download_whole", "register"]

MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/]+)|/(?P<version>\d+))")
USUAL_METRICS = [f"{split}_{name}" for split in ("test", "validation") for name in ("accuracy", "precision_at_1")]
SMALLER_IS_BETTER = ("loss", "error", "perplexity")  # the last word of a metric's name


@dataclass(frozen=True)
class Registered:
    """A version in the registry, and what became of the alias."""

    name: str
    version: int
    alias: str
    moved: bool
    """Whether the alias now points to this version."""
    reason: str
    """One sentence for a person."""

    @property
    def uri(self) -> str:
        """The version's address for :func:`sparkdl.score`; it never changes its meaning."""
        return f"models:/{self.name}/{self.version}"


def register(
    client: MlflowClient, model_uri: str, settings: Tracking, *, run_id: str, metrics: Mapping[str, float]
) -> Registered:
    """Make a logged model the next version under ``settings.register_as``; move the alias if the gate allows it.

    A model that is a version already stays that one. The version carries ``metrics`` as tags, which is what the next
    one is compared with. Raises :class:`RegistryError` if there is no name to register as, or the registry refuses.
    """
    name, alias = settings.register_as, settings.alias
    if not name:
        raise RegistryError("there is no name to register the model as; set tracking.register_as")
    try:
        current = _version_of_alias(client, name, alias)
        version = _create_version(client, name, model_uri, run_id, metrics)
        if current is not None and int(current.version) == version:
            return Registered(name, version, alias, moved=True, reason=f"alias '{alias}' points to version {version}")
        refusal, praise = _judge(settings.gate, metrics, current)
        if not refusal:
            client.set_registered_model_alias(name, alias, str(version))
    except MlflowException as error:
        if not is_refusal(error):
            raise  # it may be answered another time
        raise RegistryError(f"the registry refused {name!r}: {without_credentials(error.message)}") from None
    if not refusal:
        reason = f"alias '{alias}' points to version {version}{': ' if praise else ''}{praise}"
    elif current is None:
        reason = f"alias '{alias}' is not set: {refusal}"
    else:
        reason = f"alias '{alias}' stays on version {current.version}: {refusal}"
    return Registered(name, version, alias, moved=not refusal, reason=reason)


def download(model_uri: str, settings: Tracking | None = None) -> Path:
    """Bring a model's folder (network, card, preprocessing) to the driver's disk; one that is there is not copied.

    ``model_uri`` is ``models:/name@alias``, ``models:/name/version``, any other URI that MLflow understands, or the
    path of a saved model. Raises :class:`RegistryError` for what does not exist (and names what does) and for models
    that were not made here.
    """
    folder = download_whole(model_uri, settings or Tracking())
    try:
        flavour = Model.load(str(folder)).flavors["python_function"]
        if flavour["loader_module"] != LOADER_MODULE:
            raise RegistryError(f"{model_uri} was not made by sparkdl (its loader is {flavour['loader_module']})")
        return folder / str(flavour["data"])
    except (MlflowException, KeyError, OSError) as error:
        raise RegistryError(f"{model_uri} is not a model that sparkdl can load: {error}") from error


_downloads: dict[tuple[str, str], Path] = {}


def download_whole(model_uri: str, settings: Tracking) -> Path:
    """The same with what MLflow keeps around it: the folder of an MLflow model, as it can be copied and loaded."""
    if (path := Path(model_uri.removeprefix("file://"))).exists():
        return path
    client = connect(settings)
    uri = str(client.tracking_uri)
    try:
        if match := MODEL_URI.fullmatch(model_uri):
            version = _find(client, match["name"], alias=match["alias"], version=match["version"])
            model_uri, location = f"models:/{version.name}/{version.version}", _location(client, version)
        elif re.fullmatch(r"models:/[^/@]+", model_uri):
            location = client.get_logged_model(model_uri.removeprefix("models:/")).artifact_location
        else:
            location = model_uri
    except MlflowException as error:
        raise RegistryError(f"there is no model {model_uri}: {error.message}") from error

    def fetch() -> str:
        if _on_databricks(client) or location.startswith(("runs:", "models:")):
            # Databricks' registry hands out the credentials for its storage.
            name = model_uri if _on_databricks(client) else location
            stores = {"tracking_uri": uri, "registry_uri": client._registry_uri}
            fetched = artifacts.download_artifacts(name, dst_path=_scratch(), **stores)  # type: ignore[no-untyped-call]
            return str(fetched)
        repository = get_artifact_repository(location, tracking_uri=uri)
        if isinstance(repository, LocalArtifactRepository):
            return str(repository.artifact_dir)
        return str(repository.download_artifacts("", dst_path=_scratch()))  # type: ignore[no-untyped-call]

    return _once((uri, location), fetch, model_uri)


def _once(key: tuple[str, str], fetch: Callable[[], str], model_uri: str) -> Path:
    """Fetch it unless this process has done so already; versions never change."""
    if key not in _downloads or not _downloads[key].exists():
        try:
            _downloads[key] = Path(fetch())
        except (MlflowException, OSError) as error:
            raise RegistryError(f"cannot download {model_uri}: {error}") from error
    return _downloads[key]


def _scratch() -> str:
    """A folder that lasts as long as this process."""
    folder = tempfile.mkdtemp(prefix="sparkdl-model-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _location(client: MlflowClient, version: ModelVersion) -> str:
    """Where the files of a version lie, behind the name of the logged model it was made of."""
    location = str(client.get_model_version_download_uri(version.name, version.version))
    if re.fullmatch(r"models:/[^/@]+", location):
        return str(client.get_logged_model(location.removeprefix("models:/")).artifact_location)
    return location


def _find(client: MlflowClient, name: str, *, alias: str | None, version: str | None) -> ModelVersion:
    """The version, or an error that names what there is instead."""
    try:
        model = client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        known = ", ".join(sorted(repr(found.name) for found in client.search_registered_models(max_results=50)))
        raise RegistryError(f"there is no registered model {name!r}; registered are {known or 'none'}") from None
    number = str(model.aliases.get(alias, "")) if alias else version
    if not number:
        aliases = ", ".join(f"{known!r} (version {at})" for known, at in sorted(model.aliases.items()))
        raise RegistryError(f"the registered model {name!r} has no alias {alias!r}; it has {aliases or 'none'}")
    try:
        return client.get_model_version(name, number)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        versions = sorted(int(found.version) for found in client.search_model_versions(_named(name)))
        known = ", ".join(map(str, versions))
        raise RegistryError(
            f"the registered model {name!r} has no version {number}; it has {known or 'none'}"
        ) from None


def _version_of_alias(client: MlflowClient, name: str, alias: str) -> ModelVersion | None:
    """The version the alias points to; the registered model is made if it is new."""
    try:
        model = client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        client.create_registered_model(name)
        return None
    number = model.aliases.get(alias)
    return None if number is None else client.get_model_version(name, str(number))


def _create_version(client: MlflowClient, name: str, model_uri: str, run_id: str, metrics: Mapping[str, float]) -> int:
    """The number of the version that this model is, made now unless that was done before and its answer got lost."""
    tags = {metric: f"{value:.6g}" for metric, value in metrics.items()}
    model_id = model_uri.removeprefix("models:/")
    # A registry in a database resolves "models:/" through MLflow's global store, which need not be ours.
    source = model_uri if _on_databricks(client) else client.get_logged_model(model_id).artifact_location
    there = client.search_model_versions(_named(name))
    while True:
        for version in there:
            if version.run_id == run_id and (version.model_id == model_id or version.source == source):
                return int(version.version)
        if not there.token:
            break
        there = client.search_model_versions(_named(name), page_token=there.token)
    created = client.create_model_version(name, source, run_id, tags=tags, model_id=model_id)
    return int(created.version)


def _named(name: str) -> str:
    """The filter for a model's versions. MLflow knows no escapes in it: the quotes are those that the name has not."""
    quote = '"' if "'" in name else "'"
    return f"name = {quote}{name}{quote}"


def check_gate(settings: Tracking, metrics: Iterable[str]) -> None:
    """Raise :class:`ConfigError` for a gate that asks for what a job is not going to measure."""
    metric, known = settings.gate.metric, sorted(metrics)
    if settings.register_as and metric and metric not in known:
        raise ConfigError(
            f"tracking.gate.metric: {metric!r} is not measured here; there will be {', '.join(known) or 'nothing'}"
        )


def _judge(gate: Gate, metrics: Mapping[str, float], current: ModelVersion | None) -> tuple[str, str]:
    """Why the alias must not move (empty if it may), and why it does."""
    bounded = gate.minimum is not None or gate.maximum is not None
    there = current.tags if current else {}
    asked = gate.metric or next(filter(there.__contains__, USUAL_METRICS), None)
    metric = asked or next(filter(metrics.__contains__, USUAL_METRICS), USUAL_METRICS[0])
    value = metrics.get(metric)
    if value is None:
        if not bounded and not (asked and gate.better_than_current):
            return "", ""  # nothing is asked for, or nothing was measured that versions could be compared by
        known = ", ".join(sorted(metrics))
        return (
            f"this version has no {metric} that the gate asks for (tracking.gate.metric);"
            f" it has {known or 'no metrics'}"
        ), ""
    if not math.isfinite(value):
        return f"{metric} is {value}", ""
    if gate.minimum is not None and value < gate.minimum:
        return f"{metric} {value:.4g} is below {gate.minimum:.4g}", ""
    if gate.maximum is not None and value > gate.maximum:
        return f"{metric} {value:.4g} is above {gate.maximum:.4g}", ""
    praise = f"{metric} {value:.4g}" + (" is within the gate" if bounded else "")
    if not gate.better_than_current or current is None:
        return "", praise if bounded else ""
    try:
        before = float(current.tags[metric])
    except (KeyError, ValueError):
        return "", f"{praise}, and version {current.version} does not tell its {metric}"
    smaller = gate.minimum is None and (gate.maximum is not None or metric.endswith(SMALLER_IS_BETTER))
    # Tags hold six digits, so that is how closely two versions can be told apart.
    better, worse = (value, before) if not smaller else (before, value)
    if better < worse and not math.isclose(value, before, rel_tol=1e-5):
        return f"{metric} {value:.4g} is worse than its {before:.4g}", ""
    return "", f"{praise}{',' if bounded else ' is'} no worse than the {before:.4g} of version {current.version}"


def _on_databricks(client: MlflowClient) -> bool:
    return str(client._registry_uri).startswith("databricks")
