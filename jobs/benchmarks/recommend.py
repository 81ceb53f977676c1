"""Seconds of a step over a table of ten million vectors, with sparse gradients and dense ones, beside a loop of DDP.

The network is DLRM with a table of users, one of items and a few numbers; users are drawn evenly, so that a batch has
hardly one of them twice. Loops follow each other in the same processes, one thread each, and each of them is built
anew, as there is no room for the tables of all. The rival is ``DistributedDataParallel`` with the same network.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.report import Report, Target
from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Communicator, TorchBackend
from sparkdl.data import Batch
from sparkdl.inputs.spec import InputSpec
from sparkdl.inputs.tensors import answer
from sparkdl.models import build_named
from sparkdl.settings import Train
from sparkdl.training.checkpoints.checkpoint import save_shard
from sparkdl.training.checkpoints.state import collect
from sparkdl.training.groups import Groups
from sparkdl.training.recipes.recipe import build_optimizer
from sparkdl.training.replica import Replica
from sparkdl.training.tasks import Classification

__all__ = ["Sizes", "measure", "run"]

OURS, SMALL, DENSE, DDP = "sparkdl", "sparkdl, small table", "sparkdl, dense gradients", "DDP"
WIDTH, ITEMS, NUMBERS = 16, 10_000, 8
SETTINGS = Train(model="dlrm", optimizer="torch.optim:Adagrad", learning_rate=0.01)


class Sizes(NamedTuple):
    """How much is measured."""

    rows: int = 10_000_000
    """Of the table of users."""
    few: int = 10_000
    """Of the small one."""
    batch: int = 2_048
    """Rows of a batch of a rank."""
    steps: int = 24
    rounds: int = 3
    """How often each loop is built and takes as many steps."""


class Measured(NamedTuple):
    """What one rank has found."""

    seconds: dict[str, list[float]]
    """By loop: the median step of each round."""
    sent: dict[str, int]
    """By loop, but not of DDP: the bytes that a rank sends in a step."""
    checkpoint: tuple[float, float, int]
    """Seconds in which training waits for the copy, those until it is written, and its bytes."""


def run() -> Report:
    """Measure on one rank and on two. Runs on the driver, without Spark."""
    sizes, backend = Sizes(), TorchBackend()
    found = {ranks: run_local(partial(measure, sizes), ranks, backend=backend)[0] for ranks in (1, 2)}
    tables = {OURS: sizes.rows, SMALL: sizes.few, DENSE: sizes.rows, DDP: sizes.rows}
    rows: list[list[str | float]] = []
    targets = []
    for ranks, each in found.items():
        for name, seconds in each.seconds.items():
            sent = f"{each.sent[name] / 1e6:,.2f}" if name in each.sent else ""
            rows.append([ranks, name, f"{tables[name]:,}", 1000 * median(seconds), sent])
        of_small, of_ddp = (_ratio(each.seconds[OURS], each.seconds[name]) for name in (SMALL, DDP))
        targets += [
            Target(f"ranks {ranks}: a step over {sizes.rows:,} vectors over one over {sizes.few:,}", of_small, 2, True),
            Target(f"ranks {ranks}: a step over one of DDP's", of_ddp, 1.05, True),
        ]
    copied, written, size = found[2].checkpoint
    return Report(
        title=f"recommend: DLRM, {sizes.rows:,} vectors of {WIDTH}, Adagrad, {sizes.batch:,} rows a rank and step",
        columns=["ranks", "loop", "vectors", "ms a step", "MB sent a step"],
        rows=rows,
        targets=targets,
        note=f"Medians of {sizes.rounds} rounds of {sizes.steps} steps. A checkpoint of {size / 1e6:,.0f} MB: training"
        f" waits {copied:.2f} s for the copy, which is written in {written:.1f} s.",
    )


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def measure(sizes: Sizes, rank: Rank) -> Measured:
    """Take the steps of all loops. Runs on ranks."""
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {name: [] for name in (OURS, SMALL, DENSE, DDP)}
    sent: dict[str, int] = {}
    with TorchBackend().connect() as world:
        for number in range(sizes.rounds):
            for name in sorted(seconds, reverse=bool(number % 2)):
                users = sizes.few if name == SMALL else sizes.rows
                network = _network(users, sparse=name != DENSE)
                step = _ddp(network, world) if name == DDP else _ours(network, world)
                steps = 3 if name == DENSE else sizes.steps  # which are seconds each
                found, before = [], 0
                for place, batch in enumerate(_batches(users, sizes.batch, 2 + steps, world)):
                    world.barrier()
                    before = world.bytes_sent
                    started = time.perf_counter()
                    step(batch)
                    found.append(time.perf_counter() - started)
                    if place < 2:
                        found.clear()  # what is made and mapped in the first steps
                seconds[name].append(median(found))
                if name != DDP:
                    sent[name] = world.bytes_sent - before
                del network, step
        return Measured(seconds, sent, _checkpoint(sizes, world))


def _network(users: int, *, sparse: bool) -> nn.Module:
    ids = partial(InputSpec, kind="ids", shape=(1,), dtype="int32")
    inputs = {
        "user": ids(column="user", vocabulary=users),
        "item": ids(column="item", vocabulary=ITEMS),
        "numbers": InputSpec(column="numbers", kind="vector", shape=(NUMBERS,), dtype="float32"),
    }
    torch.manual_seed(0)
    return build_named("dlrm", inputs, num_classes=2, options={"width": WIDTH, "sparse": sparse}).train()


def _batches(users: int, size: int, count: int, world: Communicator) -> Iterator[Batch]:
    random = torch.Generator().manual_seed(world.rank)
    for _ in range(count):
        inputs = {
            "user": torch.randint(0, users, (size, 1), generator=random),
            "item": torch.randint(0, ITEMS, (size, 1), generator=random),
            "numbers": torch.rand(size, NUMBERS, generator=random),
        }
        yield Batch(inputs, torch.randint(0, 2, (size,), generator=random), size * world.size)


def _replica(network: nn.Module, world: Communicator) -> Replica:
    return Replica(network, SETTINGS, Classification(2), Groups(world, world), torch.device("cpu"))


def _ours(network: nn.Module, world: Communicator) -> Callable[[Batch], object]:
    replica = _replica(network, world)
    return lambda batch: replica.step([batch], rate=SETTINGS.learning_rate)


def _ddp(network: nn.Module, world: Communicator) -> Callable[[Batch], object]:
    """The loop that people write by hand; of one rank without DDP."""
    optimizer = build_optimizer(SETTINGS, network)
    replica = DistributedDataParallel(network) if world.size > 1 else network

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        functional.cross_entropy(answer(replica, batch.inputs), batch.labels).backward()
        optimizer.step()

    return step


def _checkpoint(sizes: Sizes, world: Communicator) -> tuple[float, float, int]:
    replica = _replica(_network(sizes.rows, sparse=True), world)
    for batch in _batches(sizes.rows, sizes.batch, 1, world):
        replica.step([batch], rate=SETTINGS.learning_rate)
    world.barrier()
    started = time.perf_counter()
    parts = collect(replica)
    copied = time.perf_counter()
    with TemporaryDirectory() as folder:
        shard = save_shard(folder, "0", "shared", parts.shared)
        return copied - started, time.perf_counter() - copied, shard.bytes
