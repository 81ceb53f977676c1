"""Replicas that several ranks share, and the steps of pipelined ones. Runs on ranks."""

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
from torch import nn
from typing_extensions import override

from sparkdl.cluster import returned_memory
from sparkdl.collectives import TorchCommunicator
from sparkdl.data import Batch
from sparkdl.inputs.tensors import moved, sliced
from sparkdl.layouts import ExpertParallel, ExpertPlan, GridPlan, PipelinePlan, SharingPlan, TensorParallel
from sparkdl.settings import Train
from sparkdl.training.groups import Groups
from sparkdl.training.recipes.recipe import autocast
from sparkdl.training.replica import BatchFigures, Replica
from sparkdl.training.strategies.keeps_part import SharedPart
from sparkdl.training.tasks import Task

__all__ = ["EXCHANGED_BYTES", "PipelinedReplica", "make_replica", "ranks_of_replica", "returning_memory"]

EXCHANGED_BYTES = 1 << 16
"""Freed buffers from this size on are returned to the system; kept by glibc, memory grew by 0.3 MB per step."""


def ranks_of_replica(plan: SharingPlan | None) -> int:
    """The number of ranks that share a replica. Ranks that share experts count as having one replica each."""
    return 1 if plan is None or isinstance(plan, ExpertPlan) else plan.ranks


def returning_memory(settings: Train, plan: SharingPlan | None) -> AbstractContextManager[None]:
    """A context for training: where ranks share a network, each returns freed memory to the system at once."""
    if plan:
        return returned_memory(EXCHANGED_BYTES)
    return returned_memory() if settings.in_parts else nullcontext()


def make_replica(
    model: nn.Module,
    settings: Train,
    task: Task,
    groups: Groups,
    device: torch.device,
    *,
    plan: SharingPlan | None = None,
) -> Replica:
    """The replica of a network, or this rank's part of it as a ``plan`` says. All ranks call it together."""
    part: SharedPart
    if isinstance(plan, ExpertPlan):
        part = ExpertParallel(model, plan, groups.world)
        return Replica(part.model, settings, task, groups, device, part)
    if plan is None or groups.replica is None:
        return Replica(model, settings, task, groups, device)
    if isinstance(plan, PipelinePlan | GridPlan):
        return PipelinedReplica(model, settings, task, groups, device, plan)
    if not isinstance(groups.replica, TorchCommunicator):
        raise TypeError("tensor parallelism communicates by PyTorch, and needs the torch backend")
    part = TensorParallel(model, plan, groups.replica)
    return Replica(part.model, settings, task, groups, device, part)


class PipelinedReplica(Replica):
    """A replica of which this rank has some stages; all its ranks see the same batches."""

    def __init__(
        self,
        model: nn.Module,
        settings: Train,
        task: Task,
        groups: Groups,
        device: torch.device,
        plan: PipelinePlan | GridPlan,
    ) -> None:
        # torch.distributed.pipelining takes time to load
        from sparkdl.layouts.grid_parallel import GridParallel
        from sparkdl.layouts.pipeline_parallel import PipelineParallel

        if not isinstance(groups.replica, TorchCommunicator):
            raise TypeError("pipeline stages communicate by PyTorch, and need the torch backend")
        context = partial(autocast, settings, device)
        if isinstance(plan, GridPlan):
            self._stages: PipelineParallel = GridParallel(model, plan, groups.replica, context)
        else:
            self._stages = PipelineParallel(model, plan, groups.replica, context)
        super().__init__(self._stages.model, settings, task, groups, device, self._stages)
        self._ranks = self._stages.ranks
        self.draws_apart = (self._ranks.rank,)

    @override
    def _gradients(self, batches: list[Batch], weight: float) -> list[BatchFigures]:
        figures = [self._back_propagate(batch, weight) for batch in batches if len(batch.labels)]
        if figures:  # without rows there are none, on all ranks of the replica
            self._stages.add_tied_gradients()
        self.strategy.begin_last_pass()  # gradients are complete after the last microbatch, and are exchanged now
        return figures

    def _back_propagate(self, batch: Batch, weight: float) -> BatchFigures:
        """As :func:`~sparkdl.training.replica.back_propagate`, by microbatches."""
        inputs, rows = moved(batch.inputs, self.device), len(batch.labels)
        labels = batch.labels.to(self.device, non_blocking=True)
        weights = None if batch.weights is None else batch.weights.to(self.device, non_blocking=True)
        teacher = None if batch.teacher is None else batch.teacher.to(self.device, non_blocking=True)
        found: dict[int, torch.Tensor] = {}

        def loss_of(logits: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
            begin = int(places[0])
            own = slice(begin, min(begin + len(places), rows))
            count = own.stop - own.start
            if count <= 0:
                return logits.sum() * 0.0
            of_rows = None if weights is None else weights[own]
            with autocast(self.settings, self.device):
                mean = self.loss(
                    logits[:count],
                    labels[own],
                    of_rows,
                    inputs=sliced(inputs, own),
                    teacher=None if teacher is None else teacher[own],
                )
            sums = self.task.sums(logits[:count].detach(), labels[own], of_rows)
            found[begin] = torch.cat([mean.detach().double().reshape(1) * count, sums.double()])
            return mean * (count * weight)

        self._stages.back_propagate(inputs, loss_of)
        total = torch.zeros(1 + self.task.sum_size, dtype=torch.float64, device=self.device)
        for each in found.values():
            total += each
        total = self._ranks.broadcast(total, root=self._ranks.size - 1)
        summed = None if weights is None else weights.double().sum()
        return BatchFigures(total[0] / rows, total[1:], rows, weight=summed)
