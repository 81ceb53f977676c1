"""The files of a run: written whole, recognised when damaged, opened without executing anything.

A checkpoint is one file. It appears under its name only when all of it has been written, and the name holds a digest of
the content, so that a torn or altered one is told from a good one without a second file that could be lost.
"""

import hashlib
import io
import logging
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Literal

import torch

from sparkdl.errors import CheckpointError
from sparkdl.storage import list_folder, read_file, remove, remove_unfinished, write_file

__all__ = [
    "Kind",
    "latest",
    "list_checkpoints",
    "load_checkpoint",
    "prune",
    "remove_partial",
    "save_checkpoint",
    "save_weights",
    "step_of",
]

log = logging.getLogger(__name__)

Kind = Literal["step", "best"]
"""``step-N-E`` holds all that a run is made of after N optimizer steps and E whole epochs, ``best-N-E`` the weights
alone of what was the best epoch then."""
NAME = re.compile(r"(?P<kind>step|best)-(?P<step>\d+)-(?P<epoch>\d+)\.(?P<digest>[0-9a-f]{16})\.pt")


def save_checkpoint(folder: str, kind: Kind, state: Mapping[str, Any], *, step: int, epoch: int) -> str:
    """Write one checkpoint of tensors and plain values into a folder (path or URI); returns its path. Runs on rank 0.

    Raises :class:`CheckpointError` when it cannot be written; nothing of it is left then.
    """
    content = io.BytesIO()
    torch.save(dict(state), content)
    path = f"{folder}/{kind}-{step:09d}-{epoch:05d}.{_digest(content.getbuffer())}.pt"
    _write(path, content)
    return path


def save_weights(path: str, weights: Mapping[str, torch.Tensor]) -> None:
    """Write a file that holds a model and nothing else. Runs on the driver."""
    content = io.BytesIO()
    torch.save({"model": dict(weights)}, content)
    _write(path, content)


def load_checkpoint(path: str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint without executing anything in it. Runs anywhere.

    Raises :class:`CheckpointError` when it is missing, torn or altered, or holds more than tensors and plain values.
    """
    try:
        content = read_file(path)
    except OSError as error:
        raise CheckpointError(f"cannot read the checkpoint {path}: {error.strerror or error}") from None
    return _open(path, content, device)


def list_checkpoints(folder: str, kind: Kind) -> list[str]:
    """The checkpoints of one kind, the newest first, whether they are whole or not.

    Raises :class:`CheckpointError` when storage does not say what is there.
    """
    try:
        names = [entry.name for entry in list_folder(folder)]
    except OSError as error:
        raise CheckpointError(
            f"cannot list the checkpoints in {folder}: {error.strerror or error}; resume the run"
            " (train.resume) when the storage gives them again"
        ) from None
    found = sorted((name for name in names if (named := NAME.fullmatch(name)) and named["kind"] == kind), reverse=True)
    return [f"{folder}/{name}" for name in found]


def latest(folder: str) -> str | None:
    """The newest checkpoint that is whole. Runs on the driver; damaged and missing ones are passed over, and told.

    Raises :class:`CheckpointError` when storage does not give one: it may be whole, and without it work would be lost.
    """
    for path in list_checkpoints(folder, "step"):
        read = path
        try:
            state = _open(path, read_file(path))
            if state["best"]:
                read = f"{folder}/{state['best']}"
                _open(read, read_file(read))
        except FileNotFoundError:
            log.warning("the checkpoint %s is not there; using the one before %s", read, path)
        except CheckpointError as error:
            log.warning("%s; using the one before it", error)
        except OSError as error:
            raise CheckpointError(
                f"cannot read the checkpoint {read}: {error.strerror or error}; it may be whole. Resume the run"
                " (train.resume) when the storage gives it again, or remove the file to go on from the one before it"
            ) from None
        else:
            return path
    return None


def step_of(path: str | None) -> int:
    """How many optimizer steps a checkpoint holds, by its name; none without one."""
    named = NAME.fullmatch(path.rpartition("/")[2]) if path else None
    return int(named["step"]) if named else 0


def _place(path: str) -> str:
    """The part of a checkpoint's name that says when it was written."""
    named = NAME.fullmatch(path.rpartition("/")[2])
    return f"{named['step']}-{named['epoch']}" if named else ""


def prune(folder: str, *, keep_last: int, keep_best: int, written: str, keep: Collection[str]) -> None:
    """Remove old checkpoints, but neither the one just ``written`` nor those to ``keep``, by name. Runs on rank 0.

    As many of the best are kept as of the last, whatever ``keep_best`` says: between two checkpoints an epoch may have
    become the best one, and the older of them refers to the one before. Those of the same place or a later one do not
    count: they are damaged, or training would have gone on from there.

    Raises :class:`CheckpointError` when storage does not say what is there.
    """
    for kind, kept in (("step", keep_last), ("best", max(keep_best, keep_last))):
        before = [path for path in list_checkpoints(folder, kind) if _place(path) < _place(written)]  # type: ignore[arg-type]
        others = [path for path in before if path.rpartition("/")[2] not in keep]
        for path in others[kept - 1 :]:
            with suppress(OSError):
                remove(path)


def remove_partial(folder: str) -> None:
    """Remove what an attempt that was killed had begun to write. Runs on the driver while no rank does."""
    with suppress(OSError):  # what stays costs only space
        remove_unfinished(folder)


def _open(path: str, content: bytes, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What the content of a checkpoint holds. Raises :class:`CheckpointError` unless it is whole."""
    named = NAME.fullmatch(path.rpartition("/")[2])
    if named and _digest(content) != named["digest"]:
        raise CheckpointError(f"the checkpoint {path} was altered, or not written to its end")
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(content), map_location=device, weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path} is not a checkpoint of tensors and plain values: {error}") from None
    return state


def _digest(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _write(path: str, content: io.BytesIO) -> None:
    try:
        write_file(path, content.getvalue())
    except OSError as error:
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {error.strerror or error}; free space, or set train.run_dir to"
            " another place"
        ) from None
