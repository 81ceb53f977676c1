"""What the cost model has to know of a cluster and a network, measured by all ranks together. Runs on ranks."""

import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median
from typing import get_args

import torch

from sparkdl.cluster import Rank, free_memory
from sparkdl.collectives import Averager, Backend, Communicator, Messenger, create_averager
from sparkdl.collectives.averaging import finish
from sparkdl.data import Batch, Dataset, Loader
from sparkdl.planning.cores import Cores, measure_cores
from sparkdl.planning.cost import StepCost, Traffic, ring
from sparkdl.settings import Train
from sparkdl.settings.averaging import Averaging, CompressedAveraging, Topology
from sparkdl.settings.section import Section
from sparkdl.settings.strategies import AllReduceOptions, RoundsOptions
from sparkdl.training.groups import Groups
from sparkdl.training.recipes.batching import Batching, batching
from sparkdl.training.replica import Replica, build_for_ranks, build_model
from sparkdl.training.task_to_train import task_to_train

__all__ = ["Measurement", "adds_up", "batches_of_steps", "measure", "ring_exchanges", "topology_seconds"]

SIZES = (4 << 10, 128 << 10, 2 << 20, 8 << 20)
"""Bytes: one exchange that is nothing but its start, one of a few activations, two that are more than a switch takes
at once."""
REPEATS = 3
WARM_UP_STEPS, STEPS = 3, 9
SHORT_PERIOD = 3
"""Steps between exchanges while a strategy is measured: an exchange is the same after as many steps as one likes. The
second one of three has none before nor after it."""


SHARDS = {"optimizer": 1.0, "all": 1.5}
"""Of replicas in shards, what travels in a step, in means of all weights: to bring weights together, once or twice,
takes half of one each time, and so does scattering the sum of gradients."""


@dataclass(frozen=True)
class Measurement:
    """What rank 0 returns."""

    exchanges: list[tuple[Traffic, float]]
    """Of some sizes, by the backend's own ring, and their seconds."""
    inside: list[tuple[Traffic, float]]
    """The same among the ranks of one host, where there are several hosts and several ranks on them."""
    ranks_of_host: int
    """On the host that has most of them."""
    cores: Cores
    topologies: dict[str, float]
    """Seconds of one mean of as many bytes as the model has, in each topology that the backend has."""
    steps: dict[str, StepCost]
    """Of the strategies for which there is room."""
    room: float
    """Bytes of memory that each rank may take beside what it has now: an equal share of what its host has left, or what
    its GPU has."""


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
    """Exchange tensors, then train a few steps with each strategy that fits. All ranks call it.

    ``memory`` are the bytes that a rank is predicted to take with a strategy, as far as they are known, and
    ``model_bytes`` those of the network's parameters.
    """
    device = torch.device(rank.device)
    with backend.connect(device) as world:
        room = _room(rank, world)
        inside, ranks_of_host = _inside(world)
        return Measurement(
            ring_exchanges(world),
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


def _inside(world: Communicator) -> tuple[list[tuple[Traffic, float]], int]:
    """What ranks of a host exchange, all hosts at a time, and of how many ranks the largest host is."""
    hosts = world.hosts()
    most = max(hosts.count(host) for host in hosts)
    if most in (1, world.size):
        return [], most
    own = world.split(sorted(set(hosts)).index(hosts[world.rank]))
    found = [(*traffic, seconds) for traffic, seconds in ring_exchanges(own)] if own.size > 1 else []
    of_largest = world.broadcast_object(found, root=hosts.index(max(hosts, key=hosts.count)))
    return [(Traffic(messages, size), seconds) for messages, size, seconds in of_largest], most


def _room(rank: Rank, world: Communicator) -> float:
    """What the rank that has the least room may take. All ranks call it together."""
    device = torch.device(rank.device)
    own = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else free_memory() / rank.local_size
    return float(torch.stack(world.all_gather(torch.tensor([own], dtype=torch.float64))).amin())


def ring_exchanges(world: Communicator) -> list[tuple[Traffic, float]]:
    """What :func:`~sparkdl.planning.cost.fit_link` takes. All ranks call it together."""
    averager = create_averager(Averaging(), world)
    return [(ring(size, world.size), _seconds(averager, size, world)) for size in SIZES]


def topology_seconds(world: Communicator, size: int) -> dict[str, float]:
    """How long a mean of ``size`` bytes takes in each topology that there is. All ranks call it together."""
    topologies: tuple[Topology, ...] = get_args(Topology) if isinstance(world, Messenger) else ("ring",)
    return {
        name: _seconds(create_averager(Averaging(topology=name), world), size, world)
        for name in topologies
        if name != "two_levels" or (isinstance(world, Messenger) and 1 < len(set(world.hosts())) < world.size)
    }


def _seconds(averager: Averager, size: int, world: Communicator) -> float:
    """The median time of an exchange of ``size`` bytes of float32, the first one left out: each until all have it."""
    tensor = torch.zeros(size // 4)
    seconds = []
    for number in range(1 + REPEATS):
        world.barrier()
        started = time.perf_counter()
        finish([averager.exchange([tensor], key=f"plan.{number}")])
        seconds.append(time.perf_counter() - started)
    slowest = torch.stack(world.all_gather(torch.tensor(seconds[1:]))).amax(dim=0)
    return float(median(slowest.tolist()))


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
    """What ranks share in place of keeping all of it, if they do."""
    return options.shard if isinstance(options, AllReduceOptions) else None


def adds_up(options: Section) -> bool:
    """Whether what this strategy exchanges is added up on the way; else every rank receives everybody's."""
    compression = options.compression if isinstance(options, CompressedAveraging) else None
    return not isinstance(options, RoundsOptions) and (compression is None or compression.adds_up)


def _usual(seconds: list[float], period: int) -> float:
    """What a step takes on average over a period, from steps in periods that were cut short.

    A step at the same place of each counts by the median: a machine that is busy for a moment is not the strategy's.
    """
    if period < SHORT_PERIOD:
        return median(seconds)
    first, between, last = (median(seconds[place::SHORT_PERIOD]) for place in range(SHORT_PERIOD))
    return (first + last + between * (period - 2)) / period


def batches_of_steps(dataset: Dataset, data: Communicator, shape: Batching) -> Iterator[list[Batch]]:
    """The batches of each step on this rank, for as many epochs as are asked for."""
    loader = Loader(dataset, "train", batch_size=shape.batch_size, rank=data.rank, size=data.size)
    batches = itertools.chain.from_iterable(map(loader.epoch, itertools.count()))
    while True:
        yield list(itertools.islice(batches, shape.accumulation))
