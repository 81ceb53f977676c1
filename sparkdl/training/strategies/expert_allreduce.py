"""Synchronous data parallelism with expert parallelism: :mod:`sparkdl.layouts.expert_parallel`."""

from collections.abc import Callable

from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.collectives import Averager, Communicator, GradientAverager, sparse_tables
from sparkdl.layouts import ExpertParallel
from sparkdl.training.strategies.part_allreduce import PartAllReduce

__all__ = ["ExpertAllReduce"]


class ExpertAllReduce(PartAllReduce):
    """The steps of :class:`~sparkdl.training.strategies.allreduce.AllReduce`, where each rank has rows of its own.

    The gradients of shared parameters are averaged over all ranks, those of experts over the ranks that have the same
    experts.
    """

    def __init__(
        self, communicator: Communicator, averager: Averager, part: ExpertParallel, of_experts: Averager
    ) -> None:
        """``communicator`` has all ranks; ``of_experts`` averages over the ranks that have the same experts."""
        super().__init__(communicator, averager, part, everyone=communicator)
        self._experts, self._of_experts = part, of_experts

    @property
    @override
    def needs_all_ranks(self) -> bool:
        return True

    @override
    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        self.model, self.optimizer = model, make_optimizer(model)  # weights were broadcast before they were split
        self._averagers = self._averagers_of(model)
        return self.model, self.optimizer

    @override
    def _averagers_of(self, model: nn.Module) -> list[GradientAverager]:
        own = self._experts.of_experts
        others = [parameter for name, parameter in model.named_parameters() if name not in own]
        return [
            GradientAverager(others, self.averager, tables=sparse_tables(model)),
            GradientAverager(own.values(), self._of_experts),
        ]

    @override
    def finish_gradients(self) -> None:
        super().finish_gradients()
        for parameter in self._experts.of_experts.values():
            if parameter.grad is not None:
                parameter.grad /= self._experts.sharing  # a sum over the rows of the sharing ranks, to become a mean
