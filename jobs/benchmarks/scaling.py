"""Scaling efficiency: two ranks with one thread each against one rank with one thread.

The rival is ``torch.nn.parallel.DistributedDataParallel`` with Gloo, on the same network and batches. Every rank keeps
its batch size (weak scaling), so that perfect efficiency, 1.0, means twice the images per second. A shared machine is a
third faster in one minute than in another, and from launch to launch: one rank and two take turns in each launch, epoch
by epoch, and so do the systems. What two ranks reach that wait for each other in every step, and exchange nothing, is
the most that a machine allows: the slower one of each step counts.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import median, quantiles

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.images import image_dataset
from benchmarks.loop import new_replica, timed_epoch
from benchmarks.report import Report, Target
from sparkdl.cluster import Rank, run_ranks
from sparkdl.cluster.devices import bind
from sparkdl.collectives import Backend, Communicator, HorovodBackend, TorchBackend
from sparkdl.collectives.distributed import TorchCommunicator
from sparkdl.data import Dataset, Loader
from sparkdl.settings import Train
from sparkdl.training.checkpoints.state import TrainingState
from sparkdl.training.network_to_train import build_model
from sparkdl.training.recipes.recipe import build_optimizer
from sparkdl.training.reports.reporter import Reporter

__all__ = ["run"]

ROWS = 5_120
LAUNCHES = 12
EPOCHS = 2
"""Of each system in each launch, after a first one, which compiles kernels and fills caches."""
SETTINGS = Train(model="cnn", epochs=1 + EPOCHS, batch_size=256, schedule="constant")
OURS = {"horovod": "sparkdl, Horovod", "torch": "sparkdl, torch"}
THEIRS, WAITING = "DistributedDataParallel, Gloo", "waiting alone"


def run() -> Report:
    """Launch two ranks, again and again, with one backend and the other. Runs on the driver."""
    backends = [HorovodBackend(), TorchBackend()] * (LAUNCHES // 2)
    with image_dataset(ROWS) as (spark, dataset):
        launches = [
            run_ranks(partial(_measure, dataset, backend), 2, spark=spark, backend=backend)[0] for backend in backends
        ]
    names = [*OURS.values(), THEIRS, WAITING]
    pairs = {name: [pair for launch in launches for pair in launch.get(name, [])] for name in names}
    efficiency = {name: median(two / (2 * one) for one, two in pairs[name]) for name in names}
    over_theirs = {
        ours: [
            mine / other
            for launch in launches
            for (_, mine), (_, other) in zip(launch.get(ours, []), launch[THEIRS], strict=False)
        ]
        for ours in OURS.values()
    }
    spreads = {ours: quantiles(ratios)[::2] for ours, ratios in over_theirs.items()}
    return Report(
        title="scaling: one rank and two, one thread each, convolutional network",
        columns=["system", "images/s, 1 rank", "images/s, 2 ranks", "efficiency"],
        rows=[[name, *map(median, zip(*pairs[name], strict=True)), efficiency[name]] for name in names],
        targets=[
            Target("efficiency, beside DDP's", efficiency[OURS["horovod"]], efficiency[THEIRS]),
            *(
                Target(f"{name}: images/s on two ranks over DDP's", median(ratios), 1.0)
                for name, ratios in over_theirs.items()
            ),
        ],
        note=f"Medians of {EPOCHS} epochs of {ROWS:,} images in each of {LAUNCHES} launches, half of them with each "
        "backend. Two ranks train an epoch, then the first alone while the other sleeps; the systems take turns. "
        "Efficiencies and ratios are those of epochs that follow each other; half of the ratios lie "
        + " and ".join(f"from {low:.3f} to {high:.3f} ({name})" for name, (low, high) in spreads.items())
        + ".",
    )


def _measure(dataset: Dataset, backend: Backend, rank: Rank) -> dict[str, list[tuple[float, float]]]:
    """Images per second of one rank and of two, by system and epoch; the first epoch is left out."""
    torch.set_num_threads(1)
    with backend.connect() as communicator, _process_group(communicator, rank):
        first = distributed.new_group([0])
        of_one = TorchCommunicator(first, distributed.HashStore())  # which asks nothing of the rank that sleeps
        ours = OURS[backend.name]
        together = _systems(ours, dataset, rank, communicator, None)
        alone = _systems(ours, dataset, replace(rank, size=1), of_one, first) if rank.rank == 0 else {}
        rates: dict[str, list[tuple[float, float]]] = {name: [] for name in together}
        for _ in range(1 + EPOCHS):
            for name in together:
                two = next(together[name])
                with _any_core():
                    one = next(alone[name]) if alone else 0.0
                rates[name].append((one, two))
                distributed.barrier()  # which takes nothing from the core of the one that computes
    return {name: found[1:] for name, found in rates.items()}


@contextmanager
def _process_group(communicator: Communicator, rank: Rank) -> Iterator[None]:
    """PyTorch's process group of all ranks, for the rivals; with our backend of that kind it is there."""
    if distributed.is_initialized():
        yield
        return
    distributed.init_process_group("gloo", store=_meeting_point(communicator), rank=rank.rank, world_size=rank.size)
    try:
        yield
    finally:
        distributed.destroy_process_group()


def _systems(
    ours: str, dataset: Dataset, rank: Rank, communicator: Communicator, group: distributed.ProcessGroup | None
) -> dict[str, Iterator[float]]:
    """Images per second of all ranks, epoch by epoch, of each system."""
    return {
        ours: _sparkdl(dataset, rank, communicator),
        THEIRS: _torch(partial(DistributedDataParallel, process_group=group), dataset, rank, group),
        WAITING: _torch(partial(_waiting, group=group), dataset, rank, group),
    }


@contextmanager
def _any_core() -> Iterator[None]:
    """Let this rank run on all cores of the process that ranks are forked from, as it does when launched alone."""
    own = os.sched_getaffinity(0)
    bind(os.sched_getaffinity(os.getppid()))
    try:
        yield
    finally:
        bind(own)


def _sparkdl(dataset: Dataset, rank: Rank, communicator: Communicator) -> Iterator[float]:
    replica = new_replica(rank, dataset, SETTINGS, communicator)
    reporter = Reporter(rank, replica.task)
    state = TrainingState()
    while True:
        yield timed_epoch(replica, dataset, state, reporter)


def _torch(
    parallel: Callable[[nn.Module], nn.Module], dataset: Dataset, rank: Rank, group: distributed.ProcessGroup | None
) -> Iterator[float]:
    """The same with PyTorch's own data parallelism or none."""
    model = build_model(dataset, SETTINGS)
    optimizer = build_optimizer(SETTINGS, model)
    replica = parallel(model)
    loader = Loader(
        dataset, "train", batch_size=SETTINGS.batch_size, rank=rank.rank, size=rank.size, seed=SETTINGS.seed
    )
    replica.train()
    for epoch in range(SETTINGS.epochs):
        started = time.perf_counter()
        for batch in loader.epoch(epoch):
            optimizer.zero_grad()
            functional.cross_entropy(replica(batch.inputs), batch.labels).backward()
            optimizer.step()
        distributed.barrier(group)
        yield dataset.rows("train") / (time.perf_counter() - started)


def _waiting(model: nn.Module, group: distributed.ProcessGroup | None) -> nn.Module:
    """Have ranks meet when back-propagation reaches the first layer, as they do who have gradients to exchange."""
    next(model.parameters()).register_post_accumulate_grad_hook(lambda _: distributed.barrier(group))
    return model


def _meeting_point(communicator: Communicator) -> distributed.TCPStore:
    """Where ranks find each other: rank 0 listens at a free port, of which it tells the others."""
    host = os.environ["HOROVOD_HOSTNAME"]
    listening = None
    if communicator.rank == 0:
        listening = distributed.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    port = communicator.broadcast_object(listening and listening.port)
    return listening or distributed.TCPStore(host, port, is_master=False)
