"""Finished repetitions on disk: weights in safetensors, and beside them a record that says that they are whole.

The record is written last and each file is renamed into place, so that a reader sees a finished repetition or none, and
a second copy of a task writes the same bytes over the same files.
"""

import hashlib
import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import load, save

from sparkdl.errors import ModelError

__all__ = ["Finished", "finished", "load_repetition", "save_repetition"]


@dataclass(frozen=True)
class Finished:
    """The record of a finished repetition."""

    repetition: int
    made_of: str
    """The digest of what decides its weights: dataset and settings."""
    sha256: str
    losses: tuple[float, ...]
    """Mean loss over rows, by epoch."""
    rows_per_second: float
    seconds: float
    """Of the whole pack's training."""
    host: str
    """Where it was trained."""

    def to_json(self) -> str:
        """The record as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """A record from its text; raises ValueError or TypeError for anything else."""
        values = json.loads(text)
        return cls(**{**values, "losses": tuple(values["losses"])})


def save_repetition(
    folder: Path,
    repetition: int,
    state: dict[str, torch.Tensor],
    *,
    made_of: str,
    losses: list[float],
    rate: float,
    seconds: float,
) -> Finished:
    """Write one repetition. Runs in a task."""
    content = save(state)
    record = Finished(
        repetition, made_of, hashlib.sha256(content).hexdigest(), tuple(losses), rate, seconds, socket.gethostname()
    )
    folder.mkdir(parents=True, exist_ok=True)
    _place(folder / _weights(repetition), content)
    _place(folder / _record(repetition), record.to_json().encode())
    return record


def finished(folder: Path, repetition: int, *, made_of: str) -> Finished | None:
    """The record of a repetition that is whole and made of the same things; None where it has to be trained."""
    try:
        record = Finished.from_json((folder / _record(repetition)).read_bytes())
        content = (folder / _weights(repetition)).read_bytes()
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return record if record.made_of == made_of and hashlib.sha256(content).hexdigest() == record.sha256 else None


def load_repetition(folder: Path, repetition: int) -> dict[str, torch.Tensor]:
    """The weights of one repetition. Raises :class:`ModelError` for files that are missing or were altered."""
    path = folder / _weights(repetition)
    try:
        record = Finished.from_json((folder / _record(repetition)).read_bytes())
        content = path.read_bytes()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelError(f"cannot read repetition {repetition} from {path}: {error}; train it again") from None
    if hashlib.sha256(content).hexdigest() != record.sha256:
        raise ModelError(f"{path} was altered after training: its checksum is another; train the repetition again")
    return load(content)


def _weights(repetition: int) -> str:
    return f"repetition-{repetition:04d}.safetensors"


def _record(repetition: int) -> str:
    return f"repetition-{repetition:04d}.json"


def _place(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
