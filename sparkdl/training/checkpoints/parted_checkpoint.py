"""Checkpoints of a network that is split over ranks: nobody who reads or writes one has all parts in memory.

The best weights stay in the shards of the best epoch's checkpoint; a small file says which shards these are.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from sparkdl.layouts import (
    Cuts,
    GridParts,
    ModelPart,
    Parting,
    Slices,
    StageParts,
    fill,
    weights_in,
    with_room,
)
from sparkdl.storage import hash_file, open_file
from sparkdl.training.checkpoints.checkpoint import Shard, load_best_file, load_shard, save_best_file
from sparkdl.training.checkpoints.shard_files import check_digest, open_shard, read_failures
from sparkdl.training.strategies.keeps_part import CONSENSUS
from sparkdl.training.strategies.shares import DealtParts

__all__ = [
    "best_pieces",
    "best_weights",
    "load_part",
    "parting_of",
    "pieces_of",
    "save_best_parts",
    "whole_state",
]


def load_part(folder: str, shard: Shard, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Read a shard as ``load_shard`` does, but without its bytes in memory: the file is read twice."""
    path = f"{folder}/{shard.name}"
    with read_failures(path):
        check_digest(path, hash_file(path), expected=shard.sha256)
        with open_file(path) as stream:
            return open_shard(path, stream, device)


def save_best_parts(folder: str, shared: Shard, shards: Sequence[Shard], *, step: int, epoch: int) -> Shard:
    """Write the names of the shards with the best weights. Runs on rank 0. Raises :class:`CheckpointError`."""
    parts = {"shared": shared.model_dump(), "shards": [shard.model_dump() for shard in shards]}
    return save_best_file(folder, parts, step=step, epoch=epoch)


def best_pieces(path: str, device: torch.device | str = "cpu") -> Iterator[ModelPart]:
    """The best weights, part by part, or as one part if each rank had the whole network. Runs anywhere.

    Raises :class:`CheckpointError`.
    """
    parts, folder = load_best_file(path, device), path.rpartition("/")[0]
    if "model" in parts:
        return iter([({}, parts["model"])])
    state = load_shard(folder, Shard(**parts["shared"]))["strategy"]
    return pieces_of(folder, _parting(state), [Shard(**shard) for shard in parts["shards"]], device, moments=False)


def best_weights(path: str, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    """All best weights, which have to fit into memory. Runs anywhere. Raises :class:`CheckpointError`."""
    parts, folder = load_best_file(path, device), path.rpartition("/")[0]
    if "model" in parts:
        return dict(parts["model"])
    state = load_shard(folder, Shard(**parts["shared"]))["strategy"]
    return whole_state(folder, _parting(state), [Shard(**shard) for shard in parts["shards"]], moments=False)


def parting_of(state: Mapping[str, Any]) -> Parting | None:
    """How a network was split over ranks, from the strategy's state in a checkpoint; None if it was not."""
    if "ownership" in state:
        return DealtParts.from_state(state)
    cuts = Cuts.from_state(state["tensor_cuts"]) if "tensor_cuts" in state else None
    stages = StageParts.from_state(state["stages"]) if "stages" in state else None
    if cuts and stages:
        return GridParts(cuts, stages)
    if parting := cuts or stages:
        return parting
    return Slices.from_state(state["slices"]) if "slices" in state else None


def pieces_of(
    folder: str,
    parting: Parting,
    shards: Sequence[Shard],
    device: torch.device | str = "cpu",
    *,
    moments: bool = True,
) -> Iterator[ModelPart]:
    """The parts in the shards of a checkpoint, one after another, with or without moments. Runs anywhere.

    They are those of the consensus: of several replicas, each part is the mean, for which two are in memory.
    """
    for place in range(parting.ranks):
        piece: dict[str, Any] = {}
        counts = Counter[str]()
        for rank in range(place, len(shards), parting.ranks):
            own = load_part(folder, shards[rank], device)
            part = parting.kept(rank, own) | own.get("strategy", {}).get(CONSENSUS, {})
            del own  # frees the rest of the shard
            _add_to_mean(piece, part if moments else weights_in(part), counts)
            del part
        yield parting.regions(place), piece
        del piece


def _add_to_mean(mean: dict[str, Any], part: Mapping[str, Any], counts: Counter[str]) -> None:
    """Add a part to the mean of ``counts`` others, one tensor after another; other values than floats are the first's.

    Equal values stay as they are to the last bit, infinite ones too. A replica without rows has no moments yet.
    """
    for name, value in part.items():
        counts[name] += 1
        own = mean.setdefault(name, value)
        if isinstance(value, torch.Tensor) and value.is_floating_point() and not torch.equal(own, value):
            mean[name] = torch.lerp(own, value, 1 / counts[name])


def whole_state(folder: str, parting: Parting, shards: Sequence[Shard], *, moments: bool = True) -> dict[str, Any]:
    """All weights and moments of a checkpoint in parts, which have to fit into memory. Runs anywhere."""
    whole: dict[str, torch.Tensor] = {}
    others: dict[str, Any] = {}
    shapes, pieces = parting.shapes, pieces_of(folder, parting, shards, moments=moments)
    rest = fill(whole, {}, shapes, with_room(pieces, whole, others, {}, shapes, shapes))
    return whole | rest | others


def _parting(state: Mapping[str, Any]) -> Parting:
    parting = parting_of(state)
    assert parting, "the file of the best weights names shards only of a network in parts"
    return parting
