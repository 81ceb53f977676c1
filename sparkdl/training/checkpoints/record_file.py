"""A small JSON file in a run's folder, from which a run or a search can be resumed. Runs on the driver."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, TypeVar

from sparkdl.errors import CheckpointError, ConfigError
from sparkdl.storage import join, make_folder, read_file, write_file

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["load_record", "save_record"]

T = TypeVar("T")


def save_record(record: "DataclassInstance", folder: str, name: str) -> None:
    """Write a dataclass into a folder. Raises :class:`CheckpointError` when the folder cannot be written."""
    try:
        make_folder(folder)
        write_file(join(folder, name), json.dumps(asdict(record), indent=2).encode())
    except OSError as error:
        raise CheckpointError(
            f"cannot write to {folder}: {error.strerror or error}; set train.run_dir to another place"
        ) from None


def load_record(kind: type[T], folder: str, name: str, *, of: str) -> T:
    """Read what :func:`save_record` wrote; ``of`` says for errors whether it is of a run or a search.

    Raises :class:`ConfigError` when there is no readable record, :class:`CheckpointError` when storage fails.
    """
    path = join(folder, name)
    try:
        return kind(**json.loads(read_file(path)))
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"there is no {of} in {folder}, so nothing can be continued") from None
    except PermissionError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except OSError as error:  # it may be the one that was asked for
        raise CheckpointError(
            f"cannot read {path}: {error.strerror or error}; try again when the storage gives it"
        ) from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error}); start a new {of}") from None
