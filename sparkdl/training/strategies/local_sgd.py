"""Local SGD (Stich, 2019, arXiv 1805.09767): ranks step alone, and average their weights every few steps.

SparkNet (Moritz et al., 2016, arXiv 1511.06051) is the same with a longer period; each solver keeps its own momentum.
"""

from typing import ClassVar

import torch
from typing_extensions import override

from sparkdl.collectives import Averager, Communicator, agree, start_means
from sparkdl.training.strategies.strategy import SteppingAlone

__all__ = ["LocalSGD"]


class LocalSGD(SteppingAlone):
    """Every ``period`` steps, all replicas are set to their mean: parameters, buffers and, if configured, moments.

    All ranks count the same steps, so that they average equally often: a rank without rows left keeps its weights for a
    step and takes part. A single rank trains as without a strategy.
    """

    replicas_differ: ClassVar[bool] = True

    def __init__(
        self, communicator: Communicator, averager: Averager, *, period: int, average_momentum: bool = False
    ) -> None:
        super().__init__(communicator, averager)
        self._period, self._average_momentum = period, average_momentum

    @override
    def after_step(self) -> None:
        super().after_step()
        if self._steps % self._period == 0:
            self._average()

    @torch.no_grad()
    def _average(self) -> None:
        tensors = [*self.trained.values(), *self.model.buffers()]
        agree(self.communicator, tensors, name="weights", averager=self.averager)
        if self._average_momentum and self._everyone_has(moments := _moments(self.optimizer)):
            start_means(self.averager, moments, name="moments")()

    def _everyone_has(self, moments: list[torch.Tensor]) -> bool:
        """Whether all ranks have moments; a rank that has had no rows yet has none."""
        counts = self.communicator.all_reduce(torch.tensor([float(bool(moments))]), op="sum")
        return bool(counts == self.communicator.size)


def _moments(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The optimizer's state in the shape of the parameters: momentum, Adam's moments."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = [(parameter, optimizer.state.get(parameter, {})) for parameter in parameters]
    return [
        value
        for parameter, state in states
        for value in state.values()
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.shape == parameter.shape
    ]
