"""A checkpoint: shards, and a manifest that says that they are whole.

Every rank writes a shard with what is its own, rank 0 one with what all share, and, when all are written, a manifest.
Without its manifest a shard is nothing. The manifest's name holds a digest of its content, which holds the digests of
the shards, so that what is torn or altered is told from what is good. Opening a shard executes nothing.
"""

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from sparkdl.data import Phase
from sparkdl.errors import CheckpointError, DamagedCheckpointError
from sparkdl.storage import make_folder, read_file, write_file, writing
from sparkdl.training.checkpoints.shard_files import check_digest, open_shard, read_failures, write_failures

__all__ = [
    "Manifest",
    "Shard",
    "copy_checkpoint",
    "load_best_file",
    "load_manifest",
    "load_shard",
    "load_shared",
    "load_weights",
    "save_best",
    "save_best_file",
    "save_manifest",
    "save_shard",
    "save_weights",
]

FORMAT = 3
NAME = re.compile(r"(?P<kind>step|best)-(?P<step>\d+)-(?P<epoch>\d+)\.(?P<digest>[0-9a-f]{16})\.(?P<ending>json|pt)")
"""``step-N-E`` is the manifest of all that a run is made of after N optimizer steps and E whole epochs, ``best-N-E``
the weights alone of what was the best epoch then."""


class Shard(BaseModel):
    """One file of a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    sha256: str
    bytes: int


class Manifest(BaseModel):
    """What a checkpoint consists of, and how far the run had come. The driver reads this alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[2, 3] = 3
    """Since 3, ``shared`` has no weights where they are the ``best`` ones."""
    step: int
    """Optimizer steps since the run began."""
    epoch: int
    """Epochs that are over."""
    batches: int
    """Batches of the rest of the epoch in progress that each rank has taken."""
    batch_size: int
    phases: list[Phase]
    """Parts of the epoch in progress that were done with other batches, or by another number of ranks."""
    seconds: float
    """Time that the epoch in progress has taken."""
    totals: list[list[float]]
    """By rank: summed loss, the sums of the task's figures, and the weight of all rows, in the epoch in progress."""
    history: list[dict[str, float]]
    """One entry per epoch."""
    best_epoch: int
    best: Shard | None
    """The weights of the best epoch; none before the first one."""
    figures: list[list[float]]
    """Of rank 0's last steps: step, loss, the task's figure, learning rate."""
    strategy: dict[str, Any]
    """How replicas agreed, with all options."""
    shared: Shard
    """The consensus of all replicas, and what else is the same on all ranks."""
    shards: list[Shard]
    """By rank: what is a rank's own."""

    @property
    def files(self) -> list[Shard]:
        """All that has to be there for the checkpoint to be whole."""
        return [self.shared, *self.shards, *([self.best] if self.best else [])]


def save_shard(folder: str, place: str, part: str, state: Mapping[str, Any]) -> Shard:
    """Write tensors and plain values into a folder (path or URI). Runs on ranks.

    ``place`` says when and in which attempt, ``part`` whose it is. The tensors have to stay as they are until it
    returns. Raises :class:`CheckpointError` when it cannot be written; nothing of it is left then.
    """
    return _save(folder, state, lambda _: f"shard-{place}.{part}.pt")


def load_shard(folder: str, shard: Shard, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a shard without executing anything in it. Runs on ranks.

    Raises :class:`DamagedCheckpointError` when it is missing or altered, :class:`CheckpointError` when storage does not
    give it.
    """
    path = f"{folder}/{shard.name}"
    with read_failures(path):
        content = read_file(path)
    check_digest(path, _digest(content), expected=shard.sha256)
    return open_shard(path, io.BytesIO(content), device)


def load_shared(folder: str, manifest: Manifest, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read what all ranks shared, the weights too where these are in the file of the best ones. Runs on ranks.

    Raises what :func:`load_shard` does.
    """
    shared = load_shard(folder, manifest.shared, device)
    if manifest.best and shared.get("model", {}) is None:
        shared["model"] = load_shard(folder, manifest.best, device)["model"]
    return shared


def save_manifest(folder: str, manifest: Manifest) -> str:
    """Write the manifest, last of all; returns its path. Runs on rank 0. Raises :class:`CheckpointError`."""
    content = json.dumps(manifest.model_dump()).encode()
    path = f"{folder}/step-{manifest.step:09d}-{manifest.epoch:05d}.{_digest(content)[:16]}.json"
    _write(path, content)
    return path


def load_manifest(path: str) -> Manifest:
    """Read a manifest. Runs anywhere.

    Raises :class:`DamagedCheckpointError` when it is missing or altered, :class:`CheckpointError` when storage does not
    give it.
    """
    try:
        content = read_file(path)
    except FileNotFoundError:
        raise DamagedCheckpointError(f"the checkpoint {path} is missing") from None
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoint {path}: {error.strerror or error}; it may be whole. Resume the run"
            " (train.resume) when the storage gives it again, or remove the file to go on from the one before it"
        ) from None
    named = NAME.fullmatch(path.rpartition("/")[2])
    if named and _digest(content)[:16] != named["digest"]:
        raise DamagedCheckpointError(f"the checkpoint {path} was altered, or not written to its end")
    try:
        return Manifest.model_validate(json.loads(content))
    except (ValueError, ValidationError) as error:
        raise CheckpointError(
            f"the checkpoint {path} is not one that this version reads (format {FORMAT}); continue the run with the"
            f" version that wrote it, or start a new run: {str(error).splitlines()[0]}"
        ) from None


def copy_checkpoint(path: str, folder: str) -> str:
    """Copy a checkpoint into another folder, where a run with the same network goes on from it; returns its path there.

    Runs on the driver, file by file. Raises :class:`DamagedCheckpointError` when it is not whole, or no longer there,
    and :class:`CheckpointError` when it cannot be written.
    """
    manifest, source = load_manifest(path), path.rpartition("/")[0]
    make_folder(folder)
    for shard in manifest.files:
        place = f"{source}/{shard.name}"
        with read_failures(place):
            content = read_file(place)
        check_digest(place, _digest(content), expected=shard.sha256)
        _write(f"{folder}/{shard.name}", content)
    return save_manifest(folder, manifest)


def save_best(folder: str, weights: Mapping[str, torch.Tensor], *, step: int, epoch: int) -> Shard:
    """Write the weights of what is the best epoch so far. Runs on rank 0. Raises :class:`CheckpointError`."""
    return save_best_file(folder, {"model": dict(weights)}, step=step, epoch=epoch)


def save_weights(path: str, weights: Mapping[str, torch.Tensor]) -> None:
    """Write a file that holds a model and nothing else. Runs on the driver."""
    folder, _, name = path.rpartition("/")
    _save(folder, {"model": dict(weights)}, lambda _: name)


def load_weights(path: str, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    """Read the weights in a file without executing anything in it. Runs anywhere. Raises :class:`CheckpointError`."""
    weights: dict[str, torch.Tensor] = load_best_file(path, device)["model"]
    return weights


def save_best_file(folder: str, content: Mapping[str, Any], *, step: int, epoch: int) -> Shard:
    """Write what leads to the weights of what is the best epoch so far."""
    return _save(folder, content, lambda digest: f"best-{step:09d}-{epoch:05d}.{digest[:16]}.pt")


def load_best_file(path: str, device: torch.device | str) -> dict[str, Any]:
    """What :func:`save_best_file` has written."""
    try:
        content = read_file(path)
    except OSError as error:
        raise CheckpointError(f"cannot read the weights {path}: {error.strerror or error}") from None
    named = NAME.fullmatch(path.rpartition("/")[2])
    if named and _digest(content)[:16] != named["digest"]:
        raise CheckpointError(f"the weights {path} were altered, or not written to their end")
    return open_shard(path, io.BytesIO(content), device)


def _digest(content: bytes | memoryview) -> str:
    return hashlib.sha256(content).hexdigest()


def _save(folder: str, state: Mapping[str, Any], name: Callable[[str], str]) -> Shard:
    """Write a file whose name may depend on its digest. It is never in memory: the tensors must stay as they are."""
    with write_failures(folder), writing(folder) as file:
        torch.save(dict(state), file)
        file.put_as = name(file.sha256)
    return Shard(name=file.put_as, sha256=file.sha256, bytes=file.size)


def _write(path: str, content: bytes | memoryview) -> None:
    with write_failures(path):
        write_file(path, content)
