"""Finished repetitions on disk: weights as safetensors, and a record that marks them as complete.

The record is written last, and each file is renamed into place, so that a reader sees a complete repetition or none. If
a task runs twice, it writes the same weights to the same files, on machines with equal rounding.
"""

import hashlib
import json
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from sparkdl.data import SparseBatch
from sparkdl.errors import ModelError
from sparkdl.storage import download_files, hash_file, join, local_path, make_folder, read_file, write_file

__all__ = [
    "BUCKETS",
    "FORMAT",
    "Finished",
    "fetch_repetition",
    "finished",
    "first_layer",
    "open_weights",
    "outputs_of",
    "rows_of_first_layer",
    "save_repetition",
    "weights_name",
]

FORMAT = "8-bit first layer, float16"
"""How weights are rounded. The first layer, nearly all of a model, has 8 bits per weight, and a scale and an offset per
feature, as quantised embedding tables do (Guan et al., 2019, arXiv 1911.02079). The rounded weights are evaluated."""
BUCKETS = "buckets"
"""The name of the tensor with the bucket of each class, int32 of shape (K,); absent with a hash function."""
_OF_A_FEATURE = 8
"""Bytes of a feature's scale and offset, which follow its weights, as PyTorch's kernel expects."""
_ROWS_AT_ONCE = 4096
"""Rows of a first layer that are quantised at a time."""


@dataclass(frozen=True)
class Finished:
    """The record of a finished repetition."""

    repetition: int
    made_of: str
    """The digest of dataset and settings, which determine the weights."""
    sha256: str
    losses: tuple[float, ...]
    """Mean loss over rows, by epoch."""
    rows_per_second: float
    seconds: float
    """Seconds of training of the whole pack."""
    host: str
    """The host where it was trained."""

    def to_json(self) -> str:
        """The record as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """A record from its text; raises ValueError or TypeError for anything else."""
        values = json.loads(text)
        return cls(**{**values, "losses": tuple(values["losses"])})


def save_repetition(
    folder: str,
    repetition: int,
    state: dict[str, torch.Tensor],
    *,
    made_of: str,
    losses: list[float],
    rate: float,
    seconds: float,
) -> Finished:
    """Write one repetition into a folder, a path or a URI: weights, and its :data:`BUCKETS` if no function gives them.

    Runs in a task.
    """
    content = save(_rounded(state))
    record = Finished(
        repetition, made_of, hashlib.sha256(content).hexdigest(), tuple(losses), rate, seconds, socket.gethostname()
    )
    make_folder(folder)
    write_file(join(folder, weights_name(repetition)), content)
    write_file(join(folder, _record_name(repetition)), record.to_json().encode())
    return record


def finished(folder: str, repetition: int, *, made_of: str) -> Finished | None:
    """The record of a complete repetition of the same dataset and settings; None if it has to be trained."""
    try:
        record = Finished.from_json(read_file(join(folder, _record_name(repetition))))
        whole = record.made_of == made_of and hash_file(join(folder, weights_name(repetition))) == record.sha256
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
    return record if whole else None


def fetch_repetition(folder: str, repetition: int, target: Path) -> None:
    """Bring a repetition's weights into a local folder, as a hard link if possible, else as a copy."""
    name = weights_name(repetition)
    local = local_path(join(folder, name))
    try:
        if local is None:
            raise OSError("not on this machine")
        (target / name).hardlink_to(local)
    except OSError:  # nor are files on another disk
        download_files(join(folder, name), target / name)


def open_weights(path: Path, *, sha256: str) -> dict[str, torch.Tensor]:
    """The weights in a file, mapped into memory, so that unused weights are never read. Runs anywhere.

    Raises :class:`ModelError` for a file that is missing or was altered.
    """
    try:
        if hash_file(str(path)) != sha256:
            raise ModelError(
                f"{path} was altered after training: its checksum has changed. Restore it, or train it again"
            )
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read the weights {path}: {error}. Restore it, or train it again") from None


def first_layer(state: dict[str, torch.Tensor], batch: SparseBatch) -> torch.Tensor:
    """The outputs of an opened repetition's first layer without its bias, float32 of shape (n, outputs).

    The kernel reads the weights from the mapped file.
    """
    sums: torch.Tensor = torch.ops.quantized.embedding_bag_byte_rowwise_offsets(
        state["table"], batch.indices, batch.offsets, per_sample_weights=batch.values, include_last_offset=True
    )
    return sums


def rows_of_first_layer(state: dict[str, torch.Tensor]) -> Iterator[torch.Tensor]:
    """The weights of an opened repetition's first layer in float32, some thousand features at a time."""
    for packed in state["table"].split(_ROWS_AT_ONCE):
        yield torch.ops.quantized.embedding_bag_byte_unpack(packed)


def outputs_of(state: dict[str, torch.Tensor]) -> int:
    """The width of an opened repetition's first layer."""
    return int(state["table"].shape[1]) - _OF_A_FEATURE


def _rounded(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    small = {
        name: (value.half() if value.is_floating_point() else value).contiguous()
        for name, value in state.items()
        if name != "table"
    }
    return {**small, "table": _in_bytes(state["table"])}


def _in_bytes(table: torch.Tensor) -> torch.Tensor:
    """Weights rounded to 8 bits, of shape (features, outputs + 8).

    Some rows at a time, because a copy of all weights of a repetition, which are strided in training, takes memory.
    """
    found = torch.empty(len(table), table.shape[1] + _OF_A_FEATURE, dtype=torch.uint8)
    for rows, packed in zip(table.split(_ROWS_AT_ONCE), found.split(_ROWS_AT_ONCE), strict=True):
        packed.copy_(torch.ops.quantized.embedding_bag_byte_prepack(rows.contiguous()))
    return found


def weights_name(repetition: int) -> str:
    """The file name of a repetition's weights."""
    return f"repetition-{repetition:04d}.safetensors"


def _record_name(repetition: int) -> str:
    return f"repetition-{repetition:04d}.json"
