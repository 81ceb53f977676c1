"""The model in a checkpoint that servers have written. Runs on a rank or a server."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

__all__ = ["SlicedModel"]


class SlicedModel:
    """A model of which each shard has a slice of every tensor that servers hold, and the first one all others."""

    @classmethod
    def assemble(cls, state: Mapping[str, Any], replicas: Iterable[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
        """Its weights, from the shapes in the state and the shards by server."""
        shapes, shards = state["shapes"], list(replicas)
        joined = {name: torch.cat([shard[name] for shard in shards]).view(shape) for name, shape in shapes.items()}
        return {**shards[0], **joined}
