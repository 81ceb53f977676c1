"""Pipeline parallelism: each rank of a replica computes a stage of the network, one microbatch after another.

The papers are GPipe (Huang et al., 2019, arXiv 1811.06965) and PipeDream (Narayanan et al., 2019, arXiv 1806.03377).
The order of passes and the exchange between neighbours are PyTorch's (``torch.distributed.pipelining``); the stages are
runs of operations in the network's graph (:mod:`sparkdl.layouts.graph_stage`).
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from typing_extensions import override

from sparkdl.collectives import Communicator, TorchCommunicator
from sparkdl.inputs.tensors import Inputs, count_rows
from sparkdl.layouts.block_edges import RanksOfReplica
from sparkdl.layouts.graph_stage import GraphStage, input_names
from sparkdl.layouts.network_graph import trace
from sparkdl.layouts.part_of_network import PartOfNetwork, square_of_norm
from sparkdl.layouts.pipeline_plan import PipelinePlan
from sparkdl.layouts.regions import Parting
from sparkdl.layouts.stage_parts import StageParts

__all__ = ["LossOfRows", "PipelineParallel"]

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "interleaved": ScheduleInterleaved1F1B}
KEPT_SHAPES = 16
"""Shapes of batches whose pipelines are kept: a new one costs an exchange of shapes, a kept one receive buffers."""
LossOfRows = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""From logits and the positions of their rows in the batch to a scalar, whose gradients are summed."""
Context = Callable[[], AbstractContextManager[Any]]


class PipelineParallel(PartOfNetwork):
    """A network of which this rank has some stages, in memory, with the whole network's outputs. Runs on ranks.

    All ranks of a replica call it together, with the same rows.
    """

    front = ()
    """See :class:`~sparkdl.layouts.TensorParallel`: there is none, as every stage sees all rows."""

    parting: Parting
    """Which rank has which part."""

    def __init__(
        self,
        model: nn.Module,
        plan: PipelinePlan,
        ranks: TorchCommunicator,
        context: Context,
        *,
        together: RanksOfReplica | None = None,
    ) -> None:
        """Keep this rank's stages of a network that is the same on all ranks, in memory or on disk.

        Stages compute within ``context``, such as autocast. ``together`` are the ranks that compute the same stage, if
        its blocks are cut.
        """
        self._plan, self.ranks = plan, ranks
        self.rank = ranks.rank
        graph = trace(model, plan.rows)
        bounds = plan.bounds(len(graph.operations))
        self.parting = self._homes = _parts(model, plan, [graph.used_parameters(*each) for each in bounds])
        _keep(model, self._homes.own(ranks.rank))
        self.model = model
        """Has only the parameters of this rank's stages. All ranks of the replica call it together."""
        # Optimizers and checkpoints use this module's parameters and their names; the code that runs is in the stages.
        model.forward = self._answer
        self._names = input_names(graph)
        stage = partial(GraphStage, graph, tensors=self._tensors, context=context, together=together)
        own = [bounds[each] for each in plan.stages_of(ranks.rank)]
        self._stages = {
            training: [stage(begin=begin, end=end, training=training) for begin, end in own]
            for training in (True, False)
        }
        self._shapes: dict[Any, _Pipeline] = {}
        self._tied = _tied_groups(self._homes, ranks)

    def state(self) -> dict[str, Any]:
        """A description of the parts for a checkpoint, as plain values."""
        return {"stages": self._homes.state()}

    def back_propagate(self, inputs: Inputs, loss: LossOfRows) -> None:
        """Add the gradients of a batch's loss to those of the parameters.

        The last stage calls ``loss`` for each microbatch, possibly twice for the first one. Rows that pad the last
        microbatch have positions beyond the batch.
        """
        self._run(inputs, loss)

    def add_tied_gradients(self) -> None:
        """Sum the gradients of parameters that several stages share, as each stage computes its own gradient."""
        parameters = dict(self.model.named_parameters())
        for name, group in self._tied.items():
            if name in parameters and group:
                parameter = parameters[name]
                own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = group.all_reduce(own, op="sum")

    @torch.no_grad()
    def clip_gradients(self, largest: float) -> None:
        """Scale gradients down if their norm over all stages is larger."""
        gradients = {name: each.grad for name, each in self.model.named_parameters() if each.grad is not None}
        first = {name: each for name, each in gradients.items() if self._homes.homes[name][0] == self.ranks.rank}
        norm = self.ranks.all_reduce(self._square(first).reshape(1), op="sum").sqrt()
        factor = (largest / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients.values():
            gradient.mul_(factor.to(gradient.device))

    def _square(self, gradients: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The squared norm of this rank's gradients, by name."""
        return square_of_norm(gradients.values())

    def _tensors(self) -> Mapping[str, torch.Tensor]:
        parameters = self.model.named_parameters(remove_duplicate=False)
        return {**dict(parameters), **dict(self.model.named_buffers(remove_duplicate=False))}

    def _answer(self, *unnamed: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        """The whole network's outputs, which the last stage broadcasts."""
        inputs: Inputs = named or unnamed[0]
        last = self._plan.ranks - 1
        logits = self._run(inputs, None)
        answered: torch.Tensor = self.ranks.broadcast_object(logits, root=last)
        return answered[: count_rows(inputs)]

    def _run(self, inputs: Inputs, loss: LossOfRows | None) -> Any:
        given = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
        rows, parts = count_rows(inputs), self._plan.microbatches
        missing = -rows % parts
        if missing:  # microbatches have one size: copies of the first row pad them
            given = [torch.cat([each, each[:1].expand(missing, *each.shape[1:])]) for each in given]
        key = loss is not None, tuple((tuple(each.shape), each.dtype) for each in given)
        pipeline = self._shapes.pop(key, None) or self._new(training=loss is not None)
        self._shapes[key] = pipeline  # keeps the least recently used one first
        if len(self._shapes) > KEPT_SHAPES:
            self._shapes.pop(next(iter(self._shapes)))
        return pipeline.run(dict(zip(self._names, given, strict=True)), rows + missing, loss)

    def _new(self, *, training: bool) -> "_Pipeline":
        device = next(iter(self._tensors().values())).device
        numbers = self._plan.stages_of(self.ranks.rank)
        stages = [
            _TimedStage(stage, number, self._plan.stages, device, group=self.ranks.group)
            for stage, number in zip(self._stages[training], numbers, strict=True)
        ]
        return _Pipeline(stages, self._plan, self.ranks, training=training)


class _TimedStage(PipelineStage):  # type: ignore[misc]
    """A stage that measures its seconds of computation and the bytes that it sends."""

    seconds = 0.0
    sent = 0

    @override
    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        found = super().forward_one_chunk(*args, **kwargs)  # type: ignore[no-untyped-call]
        self.seconds += time.perf_counter() - started
        if not self.is_last:
            self.sent += sum(each.nbytes for each in (found if isinstance(found, tuple) else (found,)))
        return found

    @override
    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> None:
        started = time.perf_counter()
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)  # type: ignore[no-untyped-call]
        self.seconds += time.perf_counter() - started
        if not self.is_first:
            self.sent += sum(each.nbytes for each in self.bwd_cache.get(bwd_chunk_id, ()) if each is not None)


class _Pipeline:
    """A rank's stages for batches of one shape, whose messages have known shapes after the first batch."""

    def __init__(
        self, stages: list[_TimedStage], plan: PipelinePlan, ranks: TorchCommunicator, *, training: bool
    ) -> None:
        self._stages, self._ranks, self._training = stages, ranks, training
        self._loss: LossOfRows | None = None
        make: Any = SCHEDULES[plan.schedule]
        self._schedule = make(
            stages if plan.schedule == "interleaved" else stages[0],
            plan.microbatches,
            loss_fn=self._loss_of if training else None,
            scale_grads=False,
        )

    def run(self, inputs: dict[str, torch.Tensor], rows: int, loss: LossOfRows | None) -> Any:
        """Run all stages forward, and with ``loss`` backward; returns the outputs on the rank of the last stage."""
        self._loss = loss
        started = time.perf_counter()
        for stage in self._stages:
            stage.seconds, stage.sent = 0.0, 0
        places = torch.arange(rows, device=next(iter(inputs.values())).device)
        target = places if self._training and self._stages[-1].is_last else None
        found = self._schedule.step(target=target, return_outputs=not self._training, **inputs)
        self._loss = None
        waited = time.perf_counter() - started - sum(stage.seconds for stage in self._stages)
        self._ranks.count_exchange(sum(stage.sent for stage in self._stages), started, waited)
        return found

    def _loss_of(self, logits: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        assert self._loss is not None
        return self._loss(logits, places)


def _parts(model: nn.Module, plan: PipelinePlan, used: list[set[str]]) -> StageParts:
    """Which rank has which parameters, if stages use these; unused parameters are on rank 0."""
    names: dict[int, list[str]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
        shapes[name] = tuple(parameter.shape)
    homes: dict[str, tuple[int, ...]] = {}
    for same in names.values():
        stages = [stage for stage, own in enumerate(used) if not own.isdisjoint(same)]
        ranks = sorted({stage % plan.ranks for stage in stages}) or [0]
        homes |= dict.fromkeys(same, tuple(ranks))
    return StageParts(shapes, homes, plan.ranks)


def _keep(model: nn.Module, own: set[str]) -> None:
    """Remove all parameters except these, and load these and buffers into memory."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name in module._parameters:
            if (f"{prefix}.{name}" if prefix else name) not in own:
                module._parameters[name] = None
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = tensor.detach().clone()  # it may be mapped from disk


def _tied_groups(parting: StageParts, ranks: TorchCommunicator) -> dict[str, Communicator | None]:
    """By parameter that stages on several ranks share: the group of these ranks, None if this rank is not one."""
    groups: dict[tuple[int, ...], Communicator | None] = {}
    found: dict[str, Communicator | None] = {}
    for name, homes in sorted(parting.homes.items()):
        if len(homes) > 1:
            if homes not in groups:
                group = ranks.split(int(ranks.rank in homes))
                groups[homes] = group if ranks.rank in homes else None
            found[name] = groups[homes]
    return found
