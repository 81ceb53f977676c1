"""Which rank has which part of a network that is cut into stages, whose layers are cut as well."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from sparkdl.layouts.cuts import Cuts
from sparkdl.layouts.pipeline_plan import PipelinePlan
from sparkdl.layouts.regions import Regions
from sparkdl.layouts.stage_parts import StageParts
from sparkdl.layouts.tensor_plan import TensorPlan

__all__ = ["GridParts", "GridPlan"]


class GridPlan(NamedTuple):
    """How the ranks of a replica share a network, by the width of its layers and by its depth."""

    tensor: TensorPlan
    pipeline: PipelinePlan
    """The stages of a network whose blocks are cut."""

    @property
    def ranks(self) -> int:
        """The number of ranks that share a replica."""
        return self.tensor.ranks * self.pipeline.ranks

    @property
    def microbatches(self) -> int:
        """The number of microbatches of a batch."""
        return self.pipeline.microbatches


class GridParts(NamedTuple):
    """The parts of all ranks: consecutive ranks have the parts of one stage, the next ranks those of the next stage."""

    cuts: Cuts
    stages: StageParts

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """See :class:`~sparkdl.layouts.regions.Parting`."""
        return self.cuts.shapes

    @property
    def ranks(self) -> int:
        """See :class:`~sparkdl.layouts.regions.Parting`."""
        return self.cuts.ranks * self.stages.ranks

    def regions(self, rank: int) -> Regions:
        """See :class:`~sparkdl.layouts.regions.Parting`."""
        own = self.stages.own(rank // self.cuts.ranks)
        return {name: region for name, region in self.cuts.regions(rank).items() if name in own}

    def kept(self, rank: int, own: Mapping[str, Any]) -> dict[str, Any]:
        """See :class:`~sparkdl.layouts.regions.Parting`."""
        return {**own["model"], **own["optimizer"]}

    def state(self) -> dict[str, Any]:
        """A description of the parts for a checkpoint, as plain values."""
        return {"tensor_cuts": self.cuts.state(), "stages": self.stages.state()}
