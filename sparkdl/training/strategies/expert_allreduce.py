"""Synchronous data parallelism of ranks that share the experts of a network: :mod:`sparkdl.layouts.expert_parallel`."""

from collections.abc import Callable

from torch import nn
from torch.optim import Optimizer
from typing_extensions import override

from sparkdl.collectives import Averager, Communicator, GradientAverager, sparse_tables
from sparkdl.layouts import ExpertParallel
from sparkdl.training.strategies.part_allreduce import PartAllReduce

__all__ = ["ExpertAllReduce"]


class ExpertAllReduce(PartAllReduce):
    """The steps of :class:`~sparkdl.training.strategies.allreduce.AllReduce`, each rank of them with its rows.

    All ranks average the gradients of what all have, and those that have the same experts average those of them.
    """

    def __init__(
        self, communicator: Communicator, averager: Averager, part: ExpertParallel, of_experts: Averager
    ) -> None:
        """``communicator`` are all ranks, and ``of_experts`` averages over those that have the same experts."""
        super().__init__(communicator, averager, part, everyone=communicator)
        self._experts, self._of_experts = part, of_experts

    @property
    @override
    def needs_all_ranks(self) -> bool:
        return True

    @override
    def wrap(self, model: nn.Module, make_optimizer: Callable[[nn.Module], Optimizer]) -> tuple[nn.Module, Optimizer]:
        self.model, self.optimizer = model, make_optimizer(model)  # ranks agreed before experts were dealt
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
                parameter.grad /= self._experts.sharing  # of whose rows it is the sum, where others are the mean
