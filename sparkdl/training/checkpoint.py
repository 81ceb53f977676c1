"""Save and restore everything a run is made of.

A checkpoint is one file, replaced atomically: a reader sees the old one or the new one. It holds tensors and plain
values only and is opened with ``weights_only=True``, which executes nothing.
"""

import io
import uuid
from collections.abc import Mapping
from typing import Any

import fsspec
import torch
from torch import nn

from sparkdl.errors import TrainingError

__all__ = ["BEST", "LAST", "load_checkpoint", "save_checkpoint", "save_weights"]

BEST = "best.pt"
LAST = "last.pt"


def save_checkpoint(
    path: str, *, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, history: list[dict[str, float]]
) -> None:
    """Write one checkpoint to a path or URI. Runs on rank 0.

    ``epoch`` counts the finished ones. Raises :class:`TrainingError` rather than replace a good checkpoint by
    weights that are not finite.
    """
    if not all(bool(torch.isfinite(tensor).all()) for tensor in model.parameters()):
        raise TrainingError(f"weights are not finite after epoch {epoch}; the checkpoint {path} stays as it was")
    _write(
        path,
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "random": torch.get_rng_state(),
            "epoch": epoch,
            "history": history,
        },
    )


def save_weights(path: str, weights: Mapping[str, torch.Tensor]) -> None:
    """Write a checkpoint that holds a model and nothing else. Runs on the driver."""
    _write(path, {"model": dict(weights)})


def load_checkpoint(path: str, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a checkpoint without executing anything in it."""
    with fsspec.open(path, "rb") as file:
        checkpoint: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
    return checkpoint


def _write(path: str, state: dict[str, Any]) -> None:
    """Replace the file as a whole: write beside it, then rename."""
    content = io.BytesIO()
    torch.save(state, content)
    filesystem, location = fsspec.url_to_fs(path)
    filesystem.makedirs(filesystem._parent(location), exist_ok=True)
    partial = f"{location}.{uuid.uuid4().hex}.partial"
    with filesystem.open(partial, "wb") as file:
        file.write(content.getbuffer())
    filesystem.mv(partial, location)
