"""Layouts as PyTorch's documentation says, over the same library: what ours are measured beside. Runs on ranks."""

import itertools
import time
from statistics import median
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from benchmarks.layout_subjects import (
    RATE,
    WARM_UP,
    Encoder,
    Layout,
    Measured,
    Network,
    batches,
    first_steps,
    watched,
)
from sparkdl.cluster import Rank, returned_memory
from sparkdl.collectives import TorchBackend
from sparkdl.models import tensors_on_disk
from sparkdl.training.checks.shared_replicas import MICROBATCHES

__all__ = ["staged_by_hand", "trained_by_hand"]


def trained_by_hand(network: Network, layout: Layout, steps: int, rank: Rank) -> Measured:
    """Take some steps with ``fully_shard`` or ``parallelize_module``."""
    first_steps()
    with TorchBackend().connect(torch.device("cpu")) as world, returned_memory(), watched() as peak:
        torch.manual_seed(0)
        model: Any = network.build()
        if layout.shard:
            for child in model.blocks if isinstance(model, Encoder) else model:
                if any(True for _ in child.parameters()):
                    fully_shard(child)
            fully_shard(model)
        else:
            parallelize_module(model, init_device_mesh("cpu", (layout.tensor,)), _plan_by_hand(model))
        # Fused steps and those of lists take no mixture of DTensors and others.
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=bool(layout.shard), foreach=False)
        seconds, mean = [], torch.zeros(())
        for (batch,) in itertools.islice(batches(network, layout, rank.rank), steps):
            distributed.barrier()
            started = time.perf_counter()
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch.inputs), batch.labels)
            loss.backward()
            optimizer.step()
            seconds.append(time.perf_counter() - started)
            mean = world.all_reduce(loss.detach())
    return Measured(float(mean), 1000 * median(seconds[WARM_UP:]), peak[0])


def staged_by_hand(network: Network, layout: Layout, steps: int, rank: Rank) -> Measured:
    """Take some steps with ``Schedule1F1B``, its stages being runs of as many layers each."""
    first_steps()
    with TorchBackend().connect(torch.device("cpu")) as world, returned_memory(), watched() as peak:
        torch.manual_seed(0)
        with tensors_on_disk():
            model = _stage_by_hand(network.build(), rank.rank, layout.pipeline)
        for parameter in model.parameters():
            parameter.data = parameter.detach().clone()
        optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
        stage = PipelineStage(model, rank.rank, layout.pipeline, torch.device("cpu"))
        parts = min(MICROBATCHES * layout.pipeline, network.rows)
        schedule: Any = Schedule1F1B(stage, parts, loss_fn=functional.cross_entropy)
        seconds, mean = [], torch.zeros(())
        for (batch,) in itertools.islice(batches(network, layout, rank.rank), steps):
            distributed.barrier()
            started = time.perf_counter()
            optimizer.zero_grad()
            losses: list[torch.Tensor] = []
            given = (batch.inputs,) if stage.is_first else ()
            schedule.step(*given, target=batch.labels if stage.is_last else None, losses=losses, return_outputs=False)
            optimizer.step()
            seconds.append(time.perf_counter() - started)
            own = torch.stack(losses).mean().detach() if losses else torch.zeros(())
            mean = world.all_reduce(own, op="sum")
    return Measured(float(mean), 1000 * median(seconds[WARM_UP:]), peak[0])


def _stage_by_hand(model: Any, rank: int, stages: int) -> nn.Module:
    """A run of the network's layers, of equal numbers."""
    if isinstance(model, Encoder):
        layers: list[nn.Module] = [_Words(model.table), *model.blocks, _Mean(model.leave)]
    else:
        layers = list(model)
    bounds = [round(len(layers) * number / stages) for number in range(stages + 1)]
    return nn.Sequential(*layers[bounds[rank] : bounds[rank + 1]])


class _Words(nn.Module):
    """What :class:`Encoder` does before its blocks."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.table((rows.abs() * 999).long().clamp(max=999))
        return found


class _Mean(nn.Module):
    """What :class:`Encoder` does behind its blocks."""

    def __init__(self, leave: nn.Module) -> None:
        super().__init__()
        self.leave = leave

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.leave(values.mean(dim=1))
        return found


def _plan_by_hand(model: nn.Module) -> dict[str, Any]:
    """As PyTorch's documentation says: the first layer of a pair by columns, the second by rows."""
    if isinstance(model, Encoder):
        pairs = [(f"blocks.{number}.linear1", f"blocks.{number}.linear2") for number in range(len(model.blocks))]
    else:
        linear = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
        pairs = list(zip(linear[::2], linear[1::2], strict=False))
    return {name: kind() for pair in pairs for name, kind in zip(pair, (ColwiseParallel, RowwiseParallel), strict=True)}
