"""One model on four ranks in each layout: the same losses, milliseconds of a step and memory of a rank.

Beside them shards, cut layers and stages by hand, as PyTorch's documentation says, over the same library (Gloo).
"""

import itertools
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from benchmarks.layout_subjects import (
    CLASSES,
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
from benchmarks.layouts_by_hand import staged_by_hand, trained_by_hand
from benchmarks.report import Report, Target
from sparkdl.cluster import Rank, returned_memory, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.layouts import ExpertPlan, GridPlan, PipelinePlan, SharingPlan, TensorPlan, part_alone
from sparkdl.models import tensors_on_disk
from sparkdl.models.experts import mixture_of_experts
from sparkdl.planning.expert_costs import bytes_of_experts, memory_with_experts
from sparkdl.planning.memory import memory_of_rank
from sparkdl.planning.stage_costs import stages_of_ranks
from sparkdl.settings import Train
from sparkdl.training.checks.shared_replicas import tried_plan
from sparkdl.training.groups import Groups
from sparkdl.training.pipelined_replica import EXCHANGED_BYTES, make_replica
from sparkdl.training.tasks import Classification

__all__ = ["LAYOUTS", "NETWORKS", "SIZE", "Launch", "measure", "on_this_machine", "report", "run", "settings_of"]

Launch = Callable[[Callable[[Rank], Any], int], list[Any]]
"""Calls a function on so many ranks, and returns what they bring home."""

SIZE, STEPS = 4, 100
MB = 1e6


LAYOUTS = (
    Layout("one process", 1),
    Layout("allreduce", SIZE),
    Layout("allreduce, shard: optimizer", SIZE, "optimizer"),
    Layout("allreduce, shard: all", SIZE, "all"),
    Layout("fully_shard by hand", SIZE, "all", by_hand=True),
    Layout("data: 2, tensor: 2", SIZE, tensor=2),
    Layout("tensor: 4", SIZE, tensor=SIZE),
    Layout("parallelize_module by hand, 4", SIZE, tensor=SIZE, by_hand=True),
    Layout("data: 2, pipeline: 2", SIZE, pipeline=2),
    Layout("pipeline: 4", SIZE, pipeline=SIZE),
    Layout("Schedule1F1B by hand, 4", SIZE, pipeline=SIZE, by_hand=True),
    Layout("tensor: 2, pipeline: 2", SIZE, tensor=2, pipeline=2),
)


def _stack(width: int, layers: int) -> nn.Module:
    hidden = [each for _ in range(layers) for each in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, CLASSES))


NETWORKS = (
    Network("stack of 8 x 768", partial(_stack, 768, 8), rows=32, width=768),
    Network("transformer, 4 blocks of 384", partial(Encoder, width=384, layers=4), rows=8, width=32),
)
MIXTURE = Network(
    "mixture of 16 experts of 1,024",
    partial(mixture_of_experts, input_shape=(256,), num_classes=CLASSES, width=256, experts=16, hidden=1024),
    rows=32,
    width=256,
)
CHOSEN = [
    *((network, layout) for network in NETWORKS for layout in LAYOUTS),
    *((MIXTURE, layout) for layout in (*LAYOUTS[:2], Layout("experts: 4", SIZE, experts=SIZE))),
]


def run() -> Report:
    """Train each network in each layout. Runs on the driver."""
    chosen = tqdm(CHOSEN, unit="layout")
    return report([(network, layout, measure(network, layout)) for network, layout in chosen])


def on_this_machine(function: Callable[[Rank], Any], ranks: int) -> list[Any]:
    """A :data:`Launch` whose ranks are processes of the driver."""
    return run_local(function, ranks, backend=TorchBackend())


def measure(network: Network, layout: Layout, *, steps: int = STEPS, launch: Launch = on_this_machine) -> Measured:
    """Take some steps in a layout, by default on ranks of this machine. Runs on the driver."""
    if layout.by_hand:
        train = partial(staged_by_hand if layout.pipeline > 1 else trained_by_hand, network, layout, steps)
    else:
        train = partial(_train, network, layout, _plan(network.build(), network, layout), steps)
    found: list[Measured] = launch(train, layout.ranks)
    return found[0]._replace(peak=max(each.peak for each in found))


def report(found: Sequence[tuple[Network, Layout, Measured]]) -> Report:
    """The table."""
    alone = {network.name: measured.loss for network, layout, measured in found if layout.ranks == 1}
    theirs = {(network.name, _way(layout)): told.milliseconds for network, layout, told in found if layout.by_hand}
    rows: list[list[str | float]] = []
    targets = []
    for network, layout, measured in found:
        difference = abs(measured.loss / alone[network.name] - 1)
        ours = not layout.by_hand
        predicted = _predicted(network, layout) if ours else 0.0
        rows.append(
            [
                *(network.name, layout.name, measured.loss, difference, measured.milliseconds, measured.peak / MB),
                predicted / MB if ours else "",
            ]
        )
        if ours and layout.ranks > 1:
            name = f"{network.name}, {layout.name}"
            targets.append(Target(f"{name}: loss against one process", difference, 1e-4, at_most=True))
            targets.append(Target(f"{name}: memory over predicted", measured.peak / predicted, 1.15, at_most=True))
        if ours and (network.name, _way(layout)) in theirs:
            over = measured.milliseconds / theirs[network.name, _way(layout)]
            targets.append(Target(f"{network.name}, {layout.name}: a step over that by hand", over, 1.05, at_most=True))
    return Report(
        title=f"layouts: {STEPS} steps on {SIZE} ranks, float32, Adam",
        columns=[
            *("network", "layout", "loss", "from one process", "ms a step", "MB of a rank", "MB predicted"),
        ],
        rows=rows,
        targets=targets,
        note="The loss is that of the last step's rows, and its difference relative. Memory is what the largest rank"
        " holds at most over what it held before there was a network.",
    )


def _way(layout: Layout) -> tuple[str | None, int, int]:
    """What a layout and one by hand have in common."""
    return layout.shard, layout.tensor, layout.pipeline


def settings_of(layout: Layout) -> Train:
    """Of a run in a layout."""
    strategy: Any = {"kind": "allreduce", "shard": layout.shard}
    return Train(optimizer="adam", learning_rate=RATE, strategy=strategy, loss="cross_entropy")


def _predicted(network: Network, layout: Layout) -> float:
    torch.manual_seed(0)
    rows = torch.rand(2, network.width)
    own, model = network.batch_of(layout), network.build()
    plan = _plan(model, network, layout)
    if isinstance(plan, ExpertPlan):
        whole = memory_of_rank(model, rows, settings_of(layout), ranks=layout.replicas, batch=own)
        return memory_with_experts(whole, bytes_of_experts(model, plan.ranks)).total
    if isinstance(plan, GridPlan):
        model, plan = part_alone(model, plan.tensor), plan.pipeline
    if isinstance(plan, PipelinePlan):
        shared = {"tensor": layout.tensor, "replicas": layout.replicas, "batch": own}
        found = stages_of_ranks(model, rows, settings_of(layout), plan, **shared)
        return max(each.memory.total for each in found)
    if isinstance(plan, TensorPlan):
        model = part_alone(model, plan)
    return memory_of_rank(model, rows, settings_of(layout), ranks=layout.replicas, batch=own).total


def _plan(model: nn.Module, network: Network, layout: Layout) -> SharingPlan | None:
    if not layout.axes.has_parts:
        return None
    return tried_plan(model, torch.rand(2, network.width), layout.axes, batch_size=network.batch_of(layout))


def _train(network: Network, layout: Layout, plan: SharingPlan | None, steps: int, rank: Rank) -> Measured:
    device, settings = torch.device("cpu"), settings_of(layout)
    first_steps()
    returned = returned_memory(EXCHANGED_BYTES) if plan else returned_memory()
    with TorchBackend().connect(device) as world, returned, watched() as peak:
        torch.manual_seed(0)
        with tensors_on_disk():
            model = network.build()
        groups = Groups.of(world, ranks_of_replica=layout.ranks_of_replica)
        replica = make_replica(model, settings, Classification(CLASSES), groups, device, plan=plan)
        seconds, computing, loss = [], [], 0.0
        for group in itertools.islice(batches(network, layout, rank.rank), steps):
            world.barrier()
            started, waited = time.perf_counter(), world.seconds_waited
            figures = replica.step(group, rate=settings.learning_rate)
            seconds.append(time.perf_counter() - started)
            computing.append(seconds[-1] - (world.seconds_waited - waited))
            loss = float(world.all_reduce(torch.stack([each.loss for each in figures]).mean()))
    taken, computed = (1000 * median(each[WARM_UP:]) for each in (seconds, computing))
    return Measured(loss, taken, peak[0], computed)
