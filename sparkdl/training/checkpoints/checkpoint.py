"""The files of a checkpoint: shards, and a manifest that makes them a checkpoint.

Every rank writes a shard with its own state. Rank 0 also writes one with the state that all share, and, when all are
written, the manifest. Shards without a manifest are ignored. The manifest has the digests of the shards, and its name
has a digest of its content, so that incomplete or altered files are recognised. Opening a shard executes no code.
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
"""``step-N-E`` is the manifest of a run's state after N optimizer steps and E complete epochs; ``best-N-E`` has the
weights of the best epoch up to then."""


class Shard(BaseModel):
    """One file of a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    sha256: str
    bytes: int


class Manifest(BaseModel):
    """What a checkpoint consists of, and how far the run had come. The driver reads no other file of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[2, 3] = 3
    """From format 3 on, ``shared`` has no weights where they equal the ``best`` ones."""
    step: int
    """Optimizer steps since the run began."""
    epoch: int
    """Complete epochs."""
    batches: int
    """Batches that each rank has taken of the epoch in progress, after its ``phases``."""
    batch_size: int
    phases: list[Phase]
    """Parts of the epoch in progress that were done with another batch size or number of ranks."""
    seconds: float
    """Seconds that the epoch in progress has taken."""
    totals: list[list[float]]
    """By rank, of the epoch in progress: summed loss, the sums of the task's figures, and the weight of all rows."""
    history: list[dict[str, float]]
    """The figures of each complete epoch."""
    best_epoch: int
    best: Shard | None
    """The file of the best epoch's weights; None before the first epoch is complete."""
    figures: list[list[float]]
    """Step, loss, the task's figure and learning rate of rank 0's last steps."""
    strategy: dict[str, Any]
    """The strategy with all its options."""
    shared: Shard
    """The shard with the consensus of all replicas and other state that is the same on all ranks."""
    shards: list[Shard]
    """By rank: the shard with the rank's own state."""

    @property
    def files(self) -> list[Shard]:
        """All files that a complete checkpoint needs."""
        return [self.shared, *self.shards, *([self.best] if self.best else [])]


def save_shard(folder: str, place: str, part: str, state: Mapping[str, Any]) -> Shard:
    """Write tensors and plain values into a folder (path or URI). Runs on ranks.

    ``place`` says at which step and in which attempt, ``part`` whose state it is. The tensors must not change until
    this returns. Raises :class:`CheckpointError` when the file cannot be written, and leaves nothing behind.
    """
    return _save(folder, state, lambda _: f"shard-{place}.{part}.pt")


def load_shard(folder: str, shard: Shard, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a shard without executing code from it. Runs on ranks.

    Raises :class:`DamagedCheckpointError` when it is missing or altered, :class:`CheckpointError` when storage does not
    give it.
    """
    path = f"{folder}/{shard.name}"
    with read_failures(path):
        content = read_file(path)
    check_digest(path, _digest(content), expected=shard.sha256)
    return open_shard(path, io.BytesIO(content), device)


def load_shared(folder: str, manifest: Manifest, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read the shared state, with the weights, which may be in the file of the best ones. Runs on ranks.

    Raises the errors of :func:`load_shard`.
    """
    shared = load_shard(folder, manifest.shared, device)
    if manifest.best and shared.get("model", {}) is None:
        shared["model"] = load_shard(folder, manifest.best, device)["model"]
    return shared


def save_manifest(folder: str, manifest: Manifest) -> str:
    """Write the manifest, after all shards: this makes the checkpoint valid. Returns its path. Runs on rank 0.

    Raises :class:`CheckpointError`.
    """
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
    """Copy a checkpoint into the folder of another run with the same network; returns the path of the copy.

    Runs on the driver, file by file. Raises :class:`DamagedCheckpointError` when the checkpoint is incomplete or gone,
    and :class:`CheckpointError` when the copy cannot be written.
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
    """Write the weights of the best epoch so far. Runs on rank 0. Raises :class:`CheckpointError`."""
    return save_best_file(folder, {"model": dict(weights)}, step=step, epoch=epoch)


def save_weights(path: str, weights: Mapping[str, torch.Tensor]) -> None:
    """Write a file with a model's weights alone. Runs on the driver."""
    folder, _, name = path.rpartition("/")
    _save(folder, {"model": dict(weights)}, lambda _: name)


def load_weights(path: str, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    """Read the weights in a file without executing code from it. Runs anywhere. Raises :class:`CheckpointError`."""
    weights: dict[str, torch.Tensor] = load_best_file(path, device)["model"]
    return weights


def save_best_file(folder: str, content: Mapping[str, Any], *, step: int, epoch: int) -> Shard:
    """Write the file of the best epoch so far: its weights, or a reference to them."""
    return _save(folder, content, lambda digest: f"best-{step:09d}-{epoch:05d}.{digest[:16]}.pt")


def load_best_file(path: str, device: torch.device | str) -> dict[str, Any]:
    """Read what :func:`save_best_file` wrote."""
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
    """Write a file whose name may depend on its digest, without a copy in memory: the tensors must not change."""
    with write_failures(folder), writing(folder) as file:
        torch.save(dict(state), file)
        file.put_as = name(file.sha256)
    return Shard(name=file.put_as, sha256=file.sha256, bytes=file.size)


def _write(path: str, content: bytes | memoryview) -> None:
    with write_failures(path):
        write_file(path, content)
