"""Measures the inputs of the cost model, for a cluster and a network, by all ranks together. Runs on ranks."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import get_args

import torch

from sparkdl.cluster import Rank, free_memory
from sparkdl.collectives import Averager, Backend, Communicator, Messenger, create_averager
from sparkdl.collectives.averaging import finish
from sparkdl.data import Batch, Dataset, Loader
from sparkdl.planning.cores import Cores, busy, measure_cores
from sparkdl.planning.cost import StepCost, Traffic, ring
from sparkdl.settings import Train
from sparkdl.settings.averaging import Averaging, CompressedAveraging, Topology
from sparkdl.settings.section import Section
from sparkdl.settings.strategies import AllReduceOptions, RoundsOptions
from sparkdl.training.groups import Groups
from sparkdl.training.network_to_train import build_for_ranks, build_model
from sparkdl.training.recipes.batching import Batching, batching
from sparkdl.training.replica import Replica
from sparkdl.training.task_to_train import task_to_train

__all__ = ["Measurement", "adds_up", "batches_of_steps", "measure", "ring_exchanges", "topology_seconds"]

SIZES = (4 << 10, 128 << 10, 2 << 20, 8 << 20)
"""Sizes of measured exchanges in bytes: pure latency, some activations, and two that exceed a switch's buffers."""
LATENCY_SIZE = 128 << 10
"""Exchanges of at most so many bytes are short, and are repeated more often."""
REPEATS, MORE_REPEATS = 3, 15
PRODUCTS = 10
"""Of matrices, before each exchange: some milliseconds."""
SHORTEST = 1e-6
"""Seconds of an exchange that takes no longer than the clock or other programs disturb."""
WARM_UP_STEPS, STEPS = 3, 9
SHORT_PERIOD = 3
"""Steps between exchanges while a strategy is measured; the cost of an exchange does not depend on them. The second of
three steps has no exchange before or after it."""


SHARDS = {"optimizer": 1.0, "all": 1.5}
"""Traffic of a step with sharded replicas, in all-reduces of all weights: each all-gather of weights (one or two) and
the reduce-scatter of gradients cost half of one."""


@dataclass(frozen=True)
class Measurement:
    """The measurements, which rank 0 returns."""

    exchanges: list[tuple[Traffic, float]]
    """Exchanges of some sizes by the backend's own ring, with their seconds."""
    inside: list[tuple[Traffic, float]]
    """The same among the ranks of one host, if there are several hosts with several ranks."""
    ranks_of_host: int
    """Ranks on the host that has most."""
    cores: Cores
    topologies: dict[str, float]
    """Seconds of an all-reduce of the model's size, by topology that the backend has."""
    steps: dict[str, StepCost]
    """By strategy for which the memory suffices."""
    room: float
    """Bytes of memory that each rank may use in addition: an equal share of its host's free memory, or its GPU's
    memory."""


def measure(
    dataset: Dataset,
    settings: Train,
    backend: Backend,
    strategies: Mapping[str, Averaging],
    rank: Rank,
    *,
    memory: Mapping[str, float],
    model_bytes: int,
) -> Measurement:
    """Exchange tensors, then train a few steps with each strategy that fits into memory. All ranks call it together.

    ``memory`` has, by strategy, the predicted bytes of a rank, as far as they are known, and
    ``model_bytes`` is the size of the network's parameters.
    """
    device = torch.device(rank.device)
    with backend.connect(device) as world:
        room = _room(rank, world)
        inside, ranks_of_host = _inside(world, device)
        return Measurement(
            ring_exchanges(world, device),
            inside,
            ranks_of_host,
            measure_cores(world, device),
            topology_seconds(world, model_bytes),
            {
                name: _step(dataset, settings, options, world, device)
                for name, options in strategies.items()
                if memory.get(name, 0.0) <= room
            },
            room,
        )


def _inside(world: Communicator, device: torch.device) -> tuple[list[tuple[Traffic, float]], int]:
    """Exchanges among the ranks of a host, on all hosts at the same time, and the ranks of the largest host."""
    hosts = world.hosts()
    most = max(hosts.count(host) for host in hosts)
    if most in (1, world.size):
        return [], most
    own = world.split(sorted(set(hosts)).index(hosts[world.rank]))
    found = [(*traffic, seconds) for traffic, seconds in ring_exchanges(own, device)] if own.size > 1 else []
    of_largest = world.broadcast_object(found, root=hosts.index(max(hosts, key=hosts.count)))
    return [(Traffic(messages, size), seconds) for messages, size, seconds in of_largest], most


def _room(rank: Rank, world: Communicator) -> float:
    """The least memory that any rank may use in addition. All ranks call it together."""
    device = torch.device(rank.device)
    own = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory() / rank.local_size
    return float(torch.stack(world.all_gather(torch.tensor([own], dtype=torch.float64))).amin())


def ring_exchanges(world: Communicator, device: torch.device) -> list[tuple[Traffic, float]]:
    """Measured exchanges for :func:`~sparkdl.planning.cost.fit_link`. All ranks call it together.

    Ranks compute before each exchange, as in a step: where they share cores, one that has got its values waits until it
    gets a core.
    """
    averager = create_averager(Averaging(), world)
    work = None if device.type == "cuda" else partial(busy, PRODUCTS)
    return [(ring(size, world.size), _seconds(averager, size, world, work)) for size in SIZES]


def topology_seconds(world: Communicator, size: int) -> dict[str, float]:
    """Seconds of a mean of ``size`` bytes in each available topology. All ranks call it together."""
    topologies: tuple[Topology, ...] = get_args(Topology) if isinstance(world, Messenger) else ("ring",)
    return {
        name: _seconds(create_averager(Averaging(topology=name), world), size, world)
        for name in topologies
        if name != "two_levels" or (isinstance(world, Messenger) and 1 < len(set(world.hosts())) < world.size)
    }


def _seconds(averager: Averager, size: int, world: Communicator, work: Callable[[], None] | None = None) -> float:
    """The median time, without the first, of exchanges of ``size`` bytes of float32, each until all ranks have it.

    Before each exchange, ranks do some ``work``, whose usual time does not count.
    """
    tensor = torch.zeros(size // 4)
    seconds, working = [], []
    for number in range(1 + (REPEATS if size > LATENCY_SIZE else MORE_REPEATS)):
        world.barrier()
        started = time.perf_counter()
        if work:
            work()
        worked = time.perf_counter()
        finish([averager.exchange([tensor], key=f"plan.{number}")])
        seconds.append(time.perf_counter() - started)
        working.append(worked - started)
    of_ranks = torch.stack(world.all_gather(torch.tensor([seconds[1:], working[1:]])))
    both, alone = of_ranks.unbind(dim=1)
    return max(SHORTEST, float(median(both.amax(dim=0).tolist())) - float(median(alone.flatten().tolist())))


def _step(dataset: Dataset, settings: Train, options: Averaging, world: Communicator, device: torch.device) -> StepCost:
    period = getattr(options, "period", 1)
    short = min(period, SHORT_PERIOD)
    ring = {"topology": "ring"} | ({"period": short} if period > 1 else {})
    noise = settings.gradient_noise if isinstance(options, AllReduceOptions) and not options.compression else None
    changed = settings.model_copy(update={"strategy": options.model_copy(update=ring), "gradient_noise": noise})
    groups, task = Groups(world, world), task_to_train(dataset.card, settings)
    build = build_for_ranks if in_shards(options) else build_model
    replica = Replica(build(dataset, changed), changed, task, groups, device)
    shape = batching(changed, size=world.size, reference=world.size)
    batches = batches_of_steps(dataset, world, shape)
    for group in itertools.islice(batches, WARM_UP_STEPS):
        replica.step(group, rate=settings.learning_rate)
    world.barrier()
    sent, seconds = world.bytes_sent, []
    for group in itertools.islice(batches, STEPS):
        started, waited = time.perf_counter(), world.seconds_waited
        replica.step(group, rate=settings.learning_rate)
        seconds.append(time.perf_counter() - started - (world.seconds_waited - waited))
    payload = (world.bytes_sent - sent) / (STEPS // short)
    if shard := in_shards(options):
        payload = SHARDS[shard] * sum(
            parameter.numel() * parameter.itemsize for parameter in replica.model.parameters()
        )
    return StepCost(_usual(seconds, period), payload, period, adds_up=adds_up(options), any_topology=not shard)


def in_shards(options: Section) -> str | None:
    """The strategy's ``shard``: what ranks keep in shards, None for nothing."""
    return options.shard if isinstance(options, AllReduceOptions) else None


def adds_up(options: Section) -> bool:
    """Whether this strategy's messages can be added up; if not, every rank receives those of all ranks."""
    compression = options.compression if isinstance(options, CompressedAveraging) else None
    return not isinstance(options, RoundsOptions) and (compression is None or compression.adds_up)


def _usual(seconds: list[float], period: int) -> float:
    """The mean seconds of a step over a period, from steps of shortened periods.

    For each position in a period, the median over periods counts, so that other load on the machine has little effect.
    """
    if period < SHORT_PERIOD:
        return median(seconds)
    first, between, last = (median(seconds[place::SHORT_PERIOD]) for place in range(SHORT_PERIOD))
    return (first + last + between * (period - 2)) / period


def batches_of_steps(dataset: Dataset, data: Communicator, shape: Batching) -> Iterator[list[Batch]]:
    """The batches of each step on this rank, endlessly, epoch after epoch."""
    loader = Loader(dataset, "train", batch_size=shape.batch_size, rank=data.rank, size=data.size)
    batches = itertools.chain.from_iterable(map(loader.epoch, itertools.count()))
    while True:
        yield list(itertools.islice(batches, shape.accumulation))
