"""Checks that runs can be recorded, before anything starts. Runs on the driver."""

from pathlib import Path
from urllib.parse import urlsplit

from mlflow.exceptions import MlflowException

from sparkdl.errors import StorageError, TrackingError
from sparkdl.masking import without_credentials
from sparkdl.settings import Tracking
from sparkdl.storage import check_writable
from sparkdl.tracking.store import connect, refuse_deleted, sqlite_folder, told, tracking_uri
from sparkdl.tracking.surroundings import surroundings

__all__ = ["check_store"]


def check_store(settings: Tracking) -> str:
    """A description of the store; creates nothing in it.

    Raises :class:`TrackingError` if the store cannot be used, unless runs may start without it.
    """
    uri, place = tracking_uri(settings), surroundings(settings)
    experiment = place.experiment or place.experiment_id or f"that of run {place.parent}"
    where = f"{without_credentials(uri)}, experiment {experiment}"
    folder = sqlite_folder(uri)
    try:
        if folder and not Path(urlsplit(uri).path[1:]).exists():
            check_writable(str(folder.absolute()))
        else:
            client = connect(settings)
            if place.experiment:
                refuse_deleted(client.get_experiment_by_name(place.experiment))
            elif place.experiment_id:
                refuse_deleted(client.get_experiment(place.experiment_id))
    except StorageError as error:
        raise TrackingError(f"cannot keep MLflow's records: {error}; set tracking.uri to another place") from None
    except MlflowException as error:
        raise TrackingError(f"cannot use the MLflow experiment {experiment!r}: {told(error)}") from None
    except TrackingError as error:
        if not settings.offline:
            raise
        return f"{where}: {error}; records are kept in {settings.spool} until it answers"
    return where
