"""Scaling efficiency: two ranks with one thread each against one rank with one thread.

The rival is ``torch.nn.parallel.DistributedDataParallel`` with Gloo, on the same network and batches. Every rank keeps
its batch size (weak scaling), so that perfect efficiency, 1.0, means twice the images per second. A shared machine is a
third faster in one minute than in another, and from launch to launch: the systems take turns in each launch, epoch by
epoch, and launches of one rank and of two follow each other. What two ranks reach that wait for each other in every
step, and exchange nothing, is the most that a machine allows: its cores share memory and clock, and the slower one of
each step counts.
"""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median

import torch
from torch import distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from sparkdl.benchmarks.images import image_dataset
from sparkdl.benchmarks.loop import new_replica, timed_epoch
from sparkdl.benchmarks.report import Report, Target
from sparkdl.cluster import Rank, run_ranks
from sparkdl.collectives import Collectives, HorovodCollectives
from sparkdl.data import Dataset, Loader
from sparkdl.settings import Train
from sparkdl.training.recipe import build_optimizer
from sparkdl.training.replica import build_model
from sparkdl.training.reporter import Reporter
from sparkdl.training.state import TrainingState

__all__ = ["run"]

ROWS = 5_120
LAUNCHES = 12
EPOCHS = 2
"""Of each system in each launch, after a first one, which compiles kernels and fills caches."""
SETTINGS = Train(model="cnn", epochs=1 + EPOCHS, batch_size=256, schedule="constant")
OURS, THEIRS, WAITING = SYSTEMS = ("sparkdl", "DistributedDataParallel, Gloo", "waiting alone")


def run() -> Report:
    """Launch one rank and two ranks in turn. Runs on the driver."""
    rates: dict[tuple[str, int], list[list[float]]] = {(name, size): [] for name in SYSTEMS for size in (1, 2)}
    with image_dataset(ROWS) as (spark, dataset):
        for _ in range(LAUNCHES):
            for size in (1, 2):
                for name, found in run_ranks(partial(_measure, dataset), size, spark=spark)[0].items():
                    rates[name, size].append(found)
    of_launches = {key: [median(epochs) for epochs in launches] for key, launches in rates.items()}
    efficiency = {
        name: median(two / (2 * one) for one, two in zip(of_launches[name, 1], of_launches[name, 2], strict=True))
        for name in SYSTEMS
    }
    over_theirs = median(
        mine / other
        for launch in zip(rates[OURS, 2], rates[THEIRS, 2], strict=True)
        for mine, other in zip(*launch, strict=True)
    )
    return Report(
        title="scaling: one rank and two, one thread each, convolutional network",
        columns=["system", "images/s, 1 rank", "images/s, 2 ranks", "efficiency"],
        rows=[[name, *(median(of_launches[name, size]) for size in (1, 2)), efficiency[name]] for name in SYSTEMS],
        targets=[
            Target("efficiency", efficiency[OURS], 0.90),
            Target("images/s on two ranks over DDP's", over_theirs, 1.0),
        ],
        note=f"Medians of {LAUNCHES} launches of one rank and of two, in each of which the systems take turns, with "
        f"{EPOCHS} epochs of {ROWS:,} images each. Efficiency is the median over launches that follow each other, the "
        "ratio over epochs that do.",
    )


def _measure(dataset: Dataset, rank: Rank) -> dict[str, list[float]]:
    """Images per second of all ranks, by system and epoch; the first epoch is left out."""
    torch.set_num_threads(1)
    with HorovodCollectives() as collectives:
        store = _meeting_point(collectives)
        distributed.init_process_group("gloo", store=store, rank=rank.rank, world_size=rank.size)
        try:
            epochs = {
                OURS: _sparkdl(dataset, rank, collectives),
                THEIRS: _torch(DistributedDataParallel, dataset, rank),
                WAITING: _torch(_waiting, dataset, rank),
            }
            rates = [{name: next(each) for name, each in epochs.items()} for _ in range(1 + EPOCHS)]
        finally:
            distributed.destroy_process_group()
    return {name: [each[name] for each in rates[1:]] for name in SYSTEMS}


def _sparkdl(dataset: Dataset, rank: Rank, collectives: HorovodCollectives) -> Iterator[float]:
    replica, reporter = new_replica(rank, dataset, SETTINGS, collectives), Reporter(rank)
    state = TrainingState()
    while True:
        yield timed_epoch(replica, dataset, state, reporter)


def _torch(parallel: Callable[[nn.Module], nn.Module], dataset: Dataset, rank: Rank) -> Iterator[float]:
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
        distributed.barrier()
        yield dataset.rows("train") / (time.perf_counter() - started)


def _waiting(model: nn.Module) -> nn.Module:
    """Have ranks meet when back-propagation reaches the first layer, as they do who have gradients to exchange."""
    next(model.parameters()).register_post_accumulate_grad_hook(lambda _: distributed.barrier())
    return model


def _meeting_point(collectives: Collectives) -> distributed.TCPStore:
    """Where ranks find each other: rank 0 listens at a free port, of which it tells the others."""
    host = os.environ["HOROVOD_HOSTNAME"]
    listening = None
    if collectives.rank == 0:
        listening = distributed.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    port = collectives.broadcast_object(listening and listening.port)
    return listening or distributed.TCPStore(host, port, is_master=False)
