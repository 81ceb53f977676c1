"""Downloads the files of registered models. Runs on the driver."""

import atexit
import re
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from mlflow import MlflowClient, artifacts
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from mlflow.models import Model
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

from sparkdl.errors import RegistryError
from sparkdl.masking import without_credentials
from sparkdl.settings import Tracking
from sparkdl.tracking.registry import versions_of
from sparkdl.tracking.store import connect, on_databricks
from sparkdl.tracking.translate import LOADER_MODULE

__all__ = ["download", "download_whole", "pinned", "version_of"]

MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/]+)|/(?P<version>\d+))")


def download(model_uri: str, settings: Tracking | None = None) -> Path:
    """Download a model's folder (network, card, preprocessing) to the driver's disk; a local folder is not copied.

    ``model_uri`` is ``models:/name@alias``, ``models:/name/version``, any other URI that MLflow understands, or the
    path of a saved model. Raises :class:`RegistryError` for a model that does not exist, which names those
    that do, and for models that sparkdl has not made.
    """
    folder = download_whole(model_uri, settings or Tracking())
    try:
        flavour = Model.load(str(folder)).flavors["python_function"]
        if flavour["loader_module"] != LOADER_MODULE:
            raise RegistryError(f"{model_uri} was not made by sparkdl (its loader is {flavour['loader_module']})")
        return folder / str(flavour["data"])
    except (MlflowException, KeyError, OSError) as error:
        raise RegistryError(f"{model_uri} is not a model that sparkdl can load: {error}") from error


def version_of(model_uri: str, settings: Tracking) -> ModelVersion | None:
    """The registered version that a URI names; None if it names something else.

    Raises :class:`RegistryError` for a version that does not exist.
    """
    match = MODEL_URI.fullmatch(model_uri)
    if match is None:
        return None
    return _find(connect(settings), match["name"], alias=match["alias"], version=match["version"])


def pinned(model_uri: str, settings: Tracking | None = None) -> str:
    """The URI with the number of the model's version, which stays valid when an alias moves; other URIs unchanged.

    Raises :class:`RegistryError` for a model that does not exist.
    """
    return _located(connect(settings or Tracking()), model_uri)[0] if MODEL_URI.fullmatch(model_uri) else model_uri


_downloads: dict[tuple[str, str], Path] = {}


def download_whole(model_uri: str, settings: Tracking) -> Path:
    """Download the whole folder of an MLflow model, with MLflow's own files, so that it can be copied and loaded."""
    if (path := Path(model_uri.removeprefix("file://"))).exists():
        return path
    client = connect(settings)
    uri = str(client.tracking_uri)
    model_uri, location = _located(client, model_uri)

    def fetch() -> str:
        if on_databricks(client) or location.startswith(("runs:", "models:")):
            # By name, because Databricks' registry then provides the credentials for its storage.
            name = model_uri if on_databricks(client) else location
            stores = {"tracking_uri": uri, "registry_uri": client._registry_uri}
            fetched = artifacts.download_artifacts(name, dst_path=_scratch(), **stores)  # type: ignore[no-untyped-call]
            return str(fetched)
        repository = get_artifact_repository(location, tracking_uri=uri)
        if isinstance(repository, LocalArtifactRepository):
            return str(repository.artifact_dir)
        return str(repository.download_artifacts("", dst_path=_scratch()))  # type: ignore[no-untyped-call]

    return _once((uri, location), fetch, model_uri)


def _located(client: MlflowClient, model_uri: str) -> tuple[str, str]:
    """A model's URI, with the number of its version if it is registered, and the location of its files."""
    try:
        if match := MODEL_URI.fullmatch(model_uri):
            version = _find(client, match["name"], alias=match["alias"], version=match["version"])
            return f"models:/{version.name}/{version.version}", _location(client, version)
        if re.fullmatch(r"models:/[^/@]+", model_uri):
            return model_uri, str(client.get_logged_model(model_uri.removeprefix("models:/")).artifact_location)
        return model_uri, model_uri
    except (MlflowException, RegistryError) as error:
        store = without_credentials(str(client.tracking_uri))
        problem = str(error) if isinstance(error, RegistryError) else f"there is no model {model_uri}: {error.message}"
        raise RegistryError(f"{problem} (in {store}; set another store in `tracking`)") from None


def _once(key: tuple[str, str], fetch: Callable[[], str], model_uri: str) -> Path:
    """Call ``fetch`` once per process for each key: versions never change."""
    if key not in _downloads or not _downloads[key].exists():
        try:
            _downloads[key] = Path(fetch())
        except (MlflowException, OSError) as error:
            raise RegistryError(f"cannot download {model_uri}: {error}") from error
    return _downloads[key]


def _scratch() -> str:
    """A temporary folder that is removed when the process ends."""
    folder = tempfile.mkdtemp(prefix="sparkdl-model-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _location(client: MlflowClient, version: ModelVersion) -> str:
    """The location of a version's files, also if its source is the name of a logged model."""
    location = str(client.get_model_version_download_uri(version.name, version.version))
    if re.fullmatch(r"models:/[^/@]+", location):
        return str(client.get_logged_model(location.removeprefix("models:/")).artifact_location)
    return location


def _find(client: MlflowClient, name: str, *, alias: str | None, version: str | None) -> ModelVersion:
    """The version. Raises :class:`RegistryError`, which names the existing ones, if it does not exist."""
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
        raise RegistryError(
            f"the registered model {name!r} has no alias {alias!r}; it has {aliases or 'none'}. A version without an"
            f" alias, such as one that the gate rejected, is named by its number: models:/{name}/1"
        )
    try:
        return client.get_model_version(name, number)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        known = ", ".join(map(str, sorted(int(found.version) for found in versions_of(client, name))))
        raise RegistryError(
            f"the registered model {name!r} has no version {number}; it has {known or 'none'}"
        ) from None
