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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from sparkdl.errors import ModelError

__all__ = ["STORED", "Finished", "finished", "open_repetition", "save_repetition", "weights_name"]

STORED = torch.float16
"""What weights are rounded to. Half of float32's bytes; what is evaluated is what is stored."""


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
    content = save({name: value.to(STORED) for name, value in state.items()})
    record = Finished(
        repetition, made_of, hashlib.sha256(content).hexdigest(), tuple(losses), rate, seconds, socket.gethostname()
    )
    folder.mkdir(parents=True, exist_ok=True)
    _place(folder / weights_name(repetition), content)
    _place(folder / _record_name(repetition), record.to_json().encode())
    return record


def finished(folder: Path, repetition: int, *, made_of: str) -> Finished | None:
    """The record of a repetition that is whole and made of the same things; None where it has to be trained."""
    try:
        record = Finished.from_json((folder / _record_name(repetition)).read_bytes())
        if record.made_of != made_of or _sha256(folder / weights_name(repetition)) != record.sha256:
            return None
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return record


def open_repetition(path: Path, *, sha256: str) -> dict[str, torch.Tensor]:
    """The weights of one repetition, mapped into memory: what is never used of them is never read. Runs anywhere.

    Raises :class:`ModelError` for a file that is missing or was altered.
    """
    try:
        if _sha256(path) != sha256:
            raise ModelError(
                f"{path} was altered after training: its checksum is another. Restore it, or train the repetition again"
            )
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the repetition {path}: {error}. Restore it, or train it again") from None


def weights_name(repetition: int) -> str:
    """What the file of a repetition's weights is called."""
    return f"repetition-{repetition:04d}.safetensors"


def _record_name(repetition: int) -> str:
    return f"repetition-{repetition:04d}.json"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _place(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
