"""One model on four ranks in each layout: the same losses, milliseconds of a step and memory of a rank.

Beside them shards, cut layers and stages by hand, as PyTorch's documentation says, over the same library (Gloo).
"""

import itertools
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from benchmarks.report import Report, Target
from sparkdl.cluster import Rank, returned_memory, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.data import Batch
from sparkdl.layouts import PipelinePlan, SharingPlan, find_plan, find_stages, part_alone
from sparkdl.models import tensors_on_disk
from sparkdl.planning import memory_of_rank, stages_of_ranks
from sparkdl.settings import Train
from sparkdl.training.groups import Groups
from sparkdl.training.loop import EXCHANGED_BYTES
from sparkdl.training.pipelined_replica import make_replica
from sparkdl.training.shared_replicas import MICROBATCHES
from sparkdl.training.tasks import Classification

__all__ = ["LAYOUTS", "NETWORKS", "Layout", "Measured", "Network", "measure", "report", "run"]

SIZE, STEPS, WARM_UP, CLASSES = 4, 100, 5, 10
RATE = 1e-5
"""Of Adam, which makes steps of this size of gradients that are nothing but rounding."""
MB = 1e6
LOOK_SECONDS = 0.002  # between two looks at the memory of a rank


class Layout(NamedTuple):
    """How a model lies on ranks."""

    name: str
    ranks: int
    shard: str | None = None
    tensor: int = 1
    pipeline: int = 1
    """Ranks that share a replica, in parts of each layer or in stages."""
    by_hand: bool = False

    @property
    def ranks_of_replica(self) -> int:
        """How many share one."""
        return self.tensor * self.pipeline

    @property
    def replicas(self) -> int:
        """Which learn from different rows."""
        return self.ranks // self.ranks_of_replica


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
)


class Network(NamedTuple):
    """What is trained."""

    name: str
    build: Callable[[], nn.Module]
    rows: int
    """Of a step, of all ranks."""
    width: int
    """Numbers of a row."""


class Encoder(nn.Module):
    """A transformer over 32 tokens."""

    def __init__(self, *, width: int, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(1_000, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True) for _ in range(layers)
        )
        self.leave = nn.Linear(width, CLASSES)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits of rows of 32 numbers up to 1, of which each is a token."""
        values = self.table((rows.abs() * 999).long().clamp(max=999))
        for block in self.blocks:
            values = block(values)
        answer: torch.Tensor = self.leave(values.mean(dim=1))
        return answer


def _stack(width: int, layers: int) -> nn.Module:
    hidden = [each for _ in range(layers) for each in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, CLASSES))


NETWORKS = (
    Network("stack of 8 x 768", partial(_stack, 768, 8), rows=32, width=768),
    Network("transformer, 4 blocks of 384", partial(Encoder, width=384, layers=4), rows=8, width=32),
)


class Measured(NamedTuple):
    """What rank 0 has seen."""

    loss: float
    """Of all rows of the last step, before it."""
    milliseconds: float
    """Of a step: the median."""
    peak: float
    """Bytes of the largest rank in steps, over what it held before the network was built."""


def run() -> Report:
    """Train each network in each layout. Runs on the driver."""
    return report([(network, layout, measure(network, layout)) for network in NETWORKS for layout in LAYOUTS])


def measure(network: Network, layout: Layout, *, steps: int = STEPS) -> Measured:
    """Take some steps in a layout, on ranks of this machine. Runs on the driver."""
    if layout.by_hand:
        train = partial(_staged_by_hand if layout.pipeline > 1 else _by_hand, network, layout, steps)
    else:
        train = partial(_train, network, layout, _plan(network.build(), network, layout), steps)
    found: list[Measured] = run_local(train, layout.ranks, backend=TorchBackend())
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


def _settings(layout: Layout) -> Train:
    strategy: Any = {"kind": "allreduce", "shard": layout.shard}
    return Train(optimizer="adam", learning_rate=RATE, strategy=strategy, loss="cross_entropy")


def _predicted(network: Network, layout: Layout) -> float:
    torch.manual_seed(0)
    rows = torch.rand(2, network.width)
    own, model = network.rows // layout.replicas, network.build()
    plan = _plan(model, network, layout)
    if isinstance(plan, PipelinePlan):
        replicas = layout.replicas
        found = stages_of_ranks(model, rows, _settings(layout), plan, replicas=replicas, batch=own)
        return max(each.memory.total for each in found)
    if plan:
        model = part_alone(model, plan)
    return memory_of_rank(model, rows, _settings(layout), ranks=layout.replicas, batch=own).total


def _batches(network: Network, layout: Layout, rank: int) -> Iterator[Batch]:
    """The rows of this rank's replica: those of all are the same in each layout."""
    replica = rank // layout.ranks_of_replica
    generator = torch.Generator().manual_seed(1)
    while True:
        rows = torch.rand(network.rows, network.width, generator=generator)
        labels = rows[:, :CLASSES].argmax(dim=1)
        mine = slice(replica * network.rows // layout.replicas, (replica + 1) * network.rows // layout.replicas)
        yield Batch(rows[mine], labels[mine], network.rows)


def _plan(model: nn.Module, network: Network, layout: Layout) -> SharingPlan | None:
    rows = torch.rand(2, network.width)
    if layout.pipeline > 1:
        parts = MICROBATCHES * layout.pipeline
        cuts = find_stages(model, rows, layout.pipeline, count=max(1, network.rows // layout.replicas // parts))
        return PipelinePlan(layout.pipeline, cuts, parts, "1f1b", rows)
    return find_plan(model, rows, layout.tensor) if layout.tensor > 1 else None


def _train(network: Network, layout: Layout, plan: SharingPlan | None, steps: int, rank: Rank) -> Measured:
    device, settings = torch.device("cpu"), _settings(layout)
    _first_steps(network)
    returned = returned_memory(EXCHANGED_BYTES) if plan else returned_memory()
    with TorchBackend().connect(device) as world, returned, _watched() as peak:
        torch.manual_seed(0)
        with tensors_on_disk():
            model = network.build()
        groups = Groups.of(world, ranks_of_replica=layout.ranks_of_replica)
        replica = make_replica(model, settings, Classification(CLASSES), groups, device, plan=plan)
        seconds, loss = [], 0.0
        for batch in itertools.islice(_batches(network, layout, rank.rank), steps):
            world.barrier()
            started = time.perf_counter()
            (figures,) = replica.step([batch], rate=settings.learning_rate)
            seconds.append(time.perf_counter() - started)
            loss = float(world.all_reduce(figures.loss))
    return Measured(loss, 1000 * median(seconds[WARM_UP:]), peak[0])


def _by_hand(network: Network, layout: Layout, steps: int, rank: Rank) -> Measured:
    _first_steps(network)
    with TorchBackend().connect(torch.device("cpu")) as world, returned_memory(), _watched() as peak:
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
        for batch in itertools.islice(_batches(network, layout, rank.rank), steps):
            distributed.barrier()
            started = time.perf_counter()
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch.inputs), batch.labels)
            loss.backward()
            optimizer.step()
            seconds.append(time.perf_counter() - started)
            mean = world.all_reduce(loss.detach())
    return Measured(float(mean), 1000 * median(seconds[WARM_UP:]), peak[0])


def _staged_by_hand(network: Network, layout: Layout, steps: int, rank: Rank) -> Measured:
    _first_steps(network)
    with TorchBackend().connect(torch.device("cpu")) as world, returned_memory(), _watched() as peak:
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
        for batch in itertools.islice(_batches(network, layout, rank.rank), steps):
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


def _first_steps(network: Network) -> None:
    """Have in memory what PyTorch loads and keeps when it first computes."""
    layer = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(layer.parameters(), fused=True)
    layer(torch.randn(4, 8)).sum().backward()
    optimizer.step()


@contextmanager
def _watched() -> Iterator[list[float]]:
    """How many bytes of memory this process has at most more in the block than before it: its first element."""
    before, peak, over = _held(), [0.0], threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            peak[0] = max(peak[0], _held() - before)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def _held() -> float:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if not found:
        raise OSError("/proc/self/status has no RssAnon; memory is measured on Linux")
    return 1024.0 * int(found[1])
