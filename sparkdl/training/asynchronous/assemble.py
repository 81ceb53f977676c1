"""Assembles the model from the shards that parameter servers wrote. Runs on a rank or a server."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

__all__ = ["SlicedModel"]


class SlicedModel:
    """A model whose trained tensors are sliced over all shards; the first shard also has the tensors that are not."""

    @classmethod
    def assemble(cls, state: Mapping[str, Any], replicas: Iterable[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
        """The model's weights; ``state`` has the shapes of sliced tensors, ``replicas`` are the shards by server."""
        shapes, shards = state["shapes"], list(replicas)
        joined = {name: torch.cat([shard[name] for shard in shards]).view(shape) for name, shape in shapes.items()}
        return {**shards[0], **joined}
