"""Scaling efficiency: two ranks with one thread each against one rank with one thread.

The rival is ``torch.nn.parallel.DistributedDataParallel`` with Gloo, on the same network and batches but in launches of
its own. Every rank keeps its batch size (weak scaling), so that perfect efficiency, 1.0, means twice the images per
second. A shared machine is a third faster in one minute than in another, so that ratios are those of launches that
follow each other. What two ranks reach that wait for each other in every step, and exchange nothing, is the most that a
machine allows: its cores share memory and clock, and the slower one of each step counts.
"""

import os
import socket
import time
from collections.abc import Callable
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
from sparkdl.collectives import HorovodCollectives
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
SETTINGS = Train(model="cnn", epochs=1 + EPOCHS, batch_size=256, schedule="constant")


def run() -> Report:
    """Launch one rank and two ranks of each system in turn. Runs on the driver."""
    systems: dict[str, Callable[[Dataset, Rank], list[float]]] = {
        "sparkdl": _sparkdl,
        "DistributedDataParallel, Gloo": partial(_torch, DistributedDataParallel),
        "waiting alone": partial(_torch, _waiting),
    }
    rates: dict[tuple[str, int], list[float]] = {(name, size): [] for name in systems for size in (1, 2)}
    with image_dataset(ROWS) as (spark, dataset):
        for _ in range(LAUNCHES):
            for name, size in rates:
                rates[name, size].append(median(run_ranks(partial(systems[name], dataset), size, spark=spark)[0]))
    found = {key: median(values) for key, values in rates.items()}
    efficiency = {
        name: median(two / (2 * one) for one, two in zip(rates[name, 1], rates[name, 2], strict=True))
        for name in systems
    }
    ours, theirs, _ = systems
    over_theirs = median(mine / other for mine, other in zip(rates[ours, 2], rates[theirs, 2], strict=True))
    return Report(
        title="scaling: one rank and two, one thread each, convolutional network",
        columns=["system", "images/s, 1 rank", "images/s, 2 ranks", "efficiency"],
        rows=[[name, found[name, 1], found[name, 2], efficiency[name]] for name in systems],
        targets=[
            Target("efficiency", efficiency[ours], 0.90),
            Target("images/s on two ranks over DDP's", over_theirs, 1.0),
        ],
        note=f"Medians of {LAUNCHES} launches of each in turn, with {EPOCHS} epochs of {ROWS:,} images; "
        "efficiency and ratio are medians over launches that follow each other.",
    )


def _sparkdl(dataset: Dataset, rank: Rank) -> list[float]:
    """Images per second of all ranks, by epoch; the first one, which compiles kernels and fills caches, is left out."""
    torch.set_num_threads(1)
    with HorovodCollectives() as collectives:
        replica, reporter = new_replica(rank, dataset, SETTINGS, collectives), Reporter(rank)
        state = TrainingState()
        rates = [timed_epoch(replica, dataset, state, reporter) for _ in range(1 + EPOCHS)]
    return rates[1:]


def _waiting(model: nn.Module) -> nn.Module:
    """Have ranks meet when back-propagation reaches the first layer, as they do who have gradients to exchange."""
    next(model.parameters()).register_post_accumulate_grad_hook(lambda _: distributed.barrier())
    return model


def _torch(parallel: Callable[[nn.Module], nn.Module], dataset: Dataset, rank: Rank) -> list[float]:
    """The same with PyTorch's own data parallelism or none, and without Horovod's thread in the process."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=_meeting_point(rank), rank=rank.rank, world_size=rank.size)
    try:
        model = build_model(dataset, SETTINGS)
        optimizer = build_optimizer(SETTINGS, model)
        replica = parallel(model)
        loader = Loader(
            dataset, "train", batch_size=SETTINGS.batch_size, rank=rank.rank, size=rank.size, seed=SETTINGS.seed
        )
        replica.train()
        rates = []
        for epoch in range(1 + EPOCHS):
            started = time.perf_counter()
            for batch in loader.epoch(epoch):
                optimizer.zero_grad()
                functional.cross_entropy(replica(batch.inputs), batch.labels).backward()
                optimizer.step()
            distributed.barrier()
            rates.append(dataset.rows("train") / (time.perf_counter() - started))
        return rates[1:]
    finally:
        distributed.destroy_process_group()


def _meeting_point(rank: Rank) -> str:
    """A free address on rank 0's host, agreed on over Horovod, which then leaves."""
    host = os.environ["HOROVOD_HOSTNAME"]
    with HorovodCollectives() as collectives, socket.create_server((host, 0)) as server:
        return str(collectives.broadcast_object(f"tcp://{host}:{server.getsockname()[1]}"))
