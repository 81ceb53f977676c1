"""Opens files of checkpoints without executing code from them, and turns failures into errors. Runs anywhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import torch

from sparkdl.errors import CheckpointError, DamagedCheckpointError

__all__ = ["check_digest", "open_shard", "read_failures", "write_failures"]


def open_shard(path: str, content: IO[bytes], device: torch.device | str) -> dict[str, Any]:
    """Read tensors and plain values; no code is executed. Raises :class:`CheckpointError` for other content."""
    try:
        state: dict[str, Any] = torch.load(content, map_location=device, weights_only=True)
    except Exception as error:
        raise CheckpointError(f"{path} does not hold tensors and plain values alone: {error}") from None
    return state


def check_digest(path: str, digest: str, *, expected: str) -> None:
    """Raise :class:`DamagedCheckpointError` unless a shard has the digest in its manifest."""
    if digest != expected:
        raise DamagedCheckpointError(f"{path} was altered, or not written to its end")


@contextmanager
def read_failures(path: str) -> Iterator[None]:
    """Raise :class:`DamagedCheckpointError` where a shard is missing, :class:`CheckpointError` where storage fails."""
    try:
        yield
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{path} is missing") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None


@contextmanager
def write_failures(path: str) -> Iterator[None]:
    """Raise storage's failures as :class:`CheckpointError`."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(
            f"cannot write the checkpoint {path}: {error.strerror or error}; free space, or set train.run_dir to"
            " another place"
        ) from None
