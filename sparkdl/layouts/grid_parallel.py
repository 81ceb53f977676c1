"""Tensor and pipeline parallelism combined: the layers of each pipeline stage are split over several ranks.

As in Megatron-LM (Narayanan et al., 2021, arXiv 2104.04473): consecutive ranks compute one stage together, so that the
all-reduces of its layers stay within a host. From stage to stage, each rank sends to the rank at its own position.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from typing_extensions import override

from sparkdl.collectives import TorchCommunicator
from sparkdl.layouts.cuts import Cuts
from sparkdl.layouts.grid_parts import GridParts, GridPlan
from sparkdl.layouts.part_of_network import square_of_parts
from sparkdl.layouts.pipeline_parallel import Context, PipelineParallel
from sparkdl.layouts.tensor_parallel import cut

__all__ = ["GridParallel"]


class GridParallel(PipelineParallel):
    """A network of which this rank has its part of some stages, with the whole network's outputs. Runs on ranks."""

    def __init__(self, model: nn.Module, plan: GridPlan, ranks: TorchCommunicator, context: Context) -> None:
        """Keep this rank's part of a network that is the same on all ranks, in memory or on disk."""
        stage, place = divmod(ranks.rank, plan.tensor.ranks)
        self._together, in_line = ranks.split(stage), ranks.split(place)
        self._cuts = Cuts.of(model, plan.tensor)
        cut(model, plan.tensor, self._together)
        super().__init__(model, plan.pipeline, in_line, context, together=self._together)
        self._homes = self._homes._replace(shapes=self._cuts.shapes)
        self.parting = self._parts = GridParts(self._cuts, self._homes)
        self.rank = ranks.rank

    @override
    def state(self) -> dict[str, Any]:
        return self._parts.state()

    @override
    def _square(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return square_of_parts(gradients, self._cuts.dims, self._together)
