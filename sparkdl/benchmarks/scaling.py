"""Scaling efficiency: two ranks with one thread each against one rank with one thread.

The rival is ``torch.nn.parallel.DistributedDataParallel`` with Gloo on the same network, batches and processes. Every
rank keeps its batch size (weak scaling), so that perfect efficiency, 1.0, means twice the images per second.
"""

import os
import socket
import time
from functools import partial
from statistics import median

import torch
from torch import distributed
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from sparkdl.benchmarks.images import image_dataset
from sparkdl.benchmarks.loop import new_replica
from sparkdl.benchmarks.report import Report, Target
from sparkdl.cluster import Rank, run_ranks
from sparkdl.collectives import HorovodCollectives
from sparkdl.config import Train
from sparkdl.data import Dataset, Loader
from sparkdl.training.loop import build_model, train_epoch
from sparkdl.training.recipe import build_optimizer
from sparkdl.training.reporter import Reporter

__all__ = ["run"]

ROWS = 5_120
LAUNCHES = 3
ROUNDS = 3  # epochs per launch
SETTINGS = Train(model="cnn", epochs=1, batch_size=256, schedule="constant")

Rates = dict[str, list[float]]


def run() -> Report:
    """Launch one rank and two ranks in turn; both systems take turns in each launch. Runs on the driver."""
    rates: dict[int, Rates] = {1: {"sparkdl": [], "DDP": []}, 2: {"sparkdl": [], "DDP": []}}
    with image_dataset(ROWS) as (spark, dataset):
        for _ in range(LAUNCHES):
            for size in rates:
                for name, measured in run_ranks(partial(_measure, dataset), size, spark=spark)[0].items():
                    rates[size][name] += measured
    found = {size: {name: median(values) for name, values in rates[size].items()} for size in rates}
    efficiency = {name: found[2][name] / (2 * found[1][name]) for name in found[1]}
    rows: list[list[str | float]] = [
        [label, found[1][name], found[2][name], efficiency[name]]
        for name, label in {"sparkdl": "sparkdl", "DDP": "DistributedDataParallel, Gloo"}.items()
    ]
    return Report(
        title="scaling: one rank and two, one thread each, convolutional network",
        columns=["system", "images/s, 1 rank", "images/s, 2 ranks", "efficiency"],
        rows=rows,
        targets=[
            Target("efficiency", efficiency["sparkdl"], 0.90),
            Target("images/s on two ranks over DDP's", found[2]["sparkdl"] / found[2]["DDP"], 1.0),
        ],
        note=f"Medians of {LAUNCHES * ROUNDS} epochs of {ROWS:,} images, in {LAUNCHES} launches of each size.",
    )


def _measure(dataset: Dataset, rank: Rank) -> Rates:
    torch.set_num_threads(1)
    rates: Rates = {"sparkdl": [], "DDP": []}
    with HorovodCollectives() as collectives:
        replica, reporter = new_replica(rank, dataset, SETTINGS, collectives), Reporter(rank)
        train_epoch(replica, dataset, 0, reporter)  # the first epoch compiles kernels and fills caches
        for epoch in range(ROUNDS):
            rates["sparkdl"].append(train_epoch(replica, dataset, epoch, reporter)["rows_per_second"])
            collectives.barrier()
            rates["DDP"].append(_ddp(rank, dataset, collectives, epoch))
            collectives.barrier()
    return rates


def _ddp(rank: Rank, dataset: Dataset, collectives: HorovodCollectives, epoch: int) -> float:
    """One epoch with PyTorch's own data parallelism; images per second of all ranks."""
    distributed.init_process_group(
        "gloo", init_method=_meeting_point(collectives), rank=rank.rank, world_size=rank.size
    )
    try:
        model = build_model(dataset, SETTINGS)
        optimizer = build_optimizer(SETTINGS, model)
        replica = DistributedDataParallel(model)
        loader = Loader(
            dataset, "train", batch_size=SETTINGS.batch_size, rank=rank.rank, size=rank.size, seed=SETTINGS.seed
        )
        replica.train()
        started = time.perf_counter()
        for batch in loader.epoch(epoch):
            optimizer.zero_grad()
            functional.cross_entropy(replica(batch.inputs), batch.labels).backward()
            optimizer.step()
        distributed.barrier()
        return dataset.rows("train") / (time.perf_counter() - started)
    finally:
        distributed.destroy_process_group()


def _meeting_point(collectives: HorovodCollectives) -> str:
    """A free address on rank 0's host, agreed on over Horovod."""
    host = os.environ["HOROVOD_HOSTNAME"]
    with socket.create_server((host, 0)) as server:
        address = f"tcp://{host}:{server.getsockname()[1]}"
    return str(collectives.broadcast_object(address))  # only now: the others would connect to the server just closed
