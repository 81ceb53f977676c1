"""Checkpoints of a network that lies in parts, one on each rank: who writes or reads them has one at a time in memory.

The best weights are those in the shards of the best epoch's checkpoint; a small file says which these are.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from sparkdl.storage import hash_file, open_file
from sparkdl.training.checkpoint import Shard, load_best_file, load_shard, save_best_file
from sparkdl.training.shard_files import check_digest, open_shard, read_failures
from sparkdl.training.strategies.shares import KeptPart, Ownership, empty_parts, fill, shrink

__all__ = [
    "best_pieces",
    "best_weights",
    "is_in_parts",
    "load_part",
    "pieces_of",
    "save_best_parts",
    "whole_weights",
]


def load_part(folder: str, shard: Shard, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What :func:`~sparkdl.training.checkpoint.load_shard` does, without the file's bytes in memory: it reads twice."""
    path = f"{folder}/{shard.name}"
    with read_failures(path):
        check_digest(path, hash_file(path), expected=shard.sha256)
        with open_file(path) as stream:
            return open_shard(path, stream, device)


def save_best_parts(folder: str, shared: Shard, shards: Sequence[Shard], *, step: int, epoch: int) -> Shard:
    """Write in which shards the best weights are. Runs on rank 0. Raises :class:`CheckpointError`."""
    parts = {"shared": shared.model_dump(), "shards": [shard.model_dump() for shard in shards]}
    return save_best_file(folder, parts, step=step, epoch=epoch)


def best_pieces(path: str, whole: Ownership, device: torch.device | str = "cpu") -> Iterator[KeptPart]:
    """The best weights in pieces, or in a single one if ranks had the whole network then. Runs anywhere.

    ``whole`` knows the network's neurons. Raises :class:`CheckpointError`.
    """
    parts, folder = load_best_file(path, device), path.rpartition("/")[0]
    if "model" in parts:
        return iter([(whole.all_neurons, parts["model"])])
    shared = load_shard(folder, Shard(**parts["shared"]))
    return pieces_of(folder, shared["strategy"], [Shard(**shard) for shard in parts["shards"]], device)[1]


def best_weights(path: str, device: torch.device | str = "cpu") -> dict[str, torch.Tensor]:
    """The best weights as a whole, for those who have room for them. Runs anywhere. Raises :class:`CheckpointError`."""
    parts, folder = load_best_file(path, device), path.rpartition("/")[0]
    if "model" in parts:
        return dict(parts["model"])
    shared = load_shard(folder, Shard(**parts["shared"]))
    return whole_weights(folder, shared["strategy"], [Shard(**shard) for shard in parts["shards"]])


def is_in_parts(state: Mapping[str, Any]) -> bool:
    """Whether the strategy whose state this is kept a network in parts."""
    return "ownership" in state


def pieces_of(
    folder: str, state: Mapping[str, Any], shards: Sequence[Shard], device: torch.device | str = "cpu"
) -> tuple[Ownership, Iterator[KeptPart]]:
    """What the ranks of a checkpoint kept, one after another, and how they shared it. Runs anywhere.

    ``state`` is the strategy's.
    """
    ownership = Ownership.from_state(state["ownership"])

    def pieces() -> Iterator[KeptPart]:
        for neurons, shard in zip(ownership.owners(max(state["round"] - 1, 0)), shards, strict=True):
            own = load_part(folder, shard, device)
            piece = dict(own["model"])
            if state["in_round"]:
                piece |= shrink(ownership, neurons, piece, own["strategy"]["waiting"])
            del own  # its moments are of no use
            yield neurons, piece
            del piece

    return ownership, pieces()


def whole_weights(folder: str, state: Mapping[str, Any], shards: Sequence[Shard]) -> dict[str, torch.Tensor]:
    """The whole network of a checkpoint in parts, for those who have room for it. Runs on a rank."""
    ownership, pieces = pieces_of(folder, state, shards)
    first = next(pieces)
    weights = empty_parts(ownership, ownership.all_neurons, first[1])
    return weights | fill(weights, ownership.all_neurons, ownership, itertools.chain([first], pieces))
