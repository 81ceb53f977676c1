"""Images per second of our training loop beside a hand-written Horovod loop, on one rank.

Both use the same loader, network and optimizer, take turns in the same process, and train as long on the same batches.
What our loop spends to know its figures (loading, computing, exchanging, waiting, saving, and the trace) is also
measured by itself: it is too little for a difference of two loops.
"""

import time
from collections.abc import Iterator
from functools import partial
from statistics import median

import torch
from torch.nn import functional

from benchmarks.images import image_dataset
from benchmarks.report import Report, Target
from sparkdl.cluster import Rank, run_ranks
from sparkdl.collectives import Communicator, HorovodBackend
from sparkdl.data import Dataset, Loader
from sparkdl.settings import Train
from sparkdl.training.checkpoints.state import TrainingState
from sparkdl.training.groups import Groups
from sparkdl.training.loop import train_epoch
from sparkdl.training.network_to_train import build_model
from sparkdl.training.recipes.recipe import build_optimizer
from sparkdl.training.replica import Replica
from sparkdl.training.reports.reporter import Reporter
from sparkdl.training.reports.stopwatch import Stopwatch
from sparkdl.training.task_to_train import task_to_train

__all__ = ["new_replica", "run", "timed_epoch", "watching_seconds"]

ROWS = 3_200
ROUNDS = 45
SETTINGS = Train(model="cnn", epochs=1 + ROUNDS, batch_size=64, schedule="constant")


def run() -> Report:
    """Measure both loops in turn. Runs on the driver."""
    with image_dataset(ROWS) as (spark, dataset):
        ((rates, watching),) = run_ranks(partial(_measure, dataset), 1, spark=spark, backend=HorovodBackend())
    mine, theirs = median(rates["ours"]), median(rates["by hand"])
    ratio = median(a / b for a, b in zip(rates["ours"], rates["by hand"], strict=True))
    return Report(
        title="loop: one rank, convolutional network",
        columns=["loop", "images/s", "ratio"],
        rows=[["sparkdl", mine, ratio], ["hand-written Horovod loop", theirs, 1.0]],
        targets=[
            Target("images/s over the hand-written loop's", ratio, 0.97),
            Target("figures and trace, part of a step", watching * mine / SETTINGS.batch_size, 0.01, at_most=True),
        ],
        note=f"Medians of {ROUNDS} epochs of {ROWS:,} images each, taken in turn; ratio of each pair. Figures and trace"
        f" of a step take {watching * 1e6:.0f} microseconds.",
    )


def new_replica(rank: Rank, dataset: Dataset, settings: Train, communicator: Communicator) -> Replica:
    """What :func:`sparkdl.train` makes on each rank. Runs on a rank."""
    model = build_model(dataset, settings)
    task = task_to_train(dataset.card, settings)
    return Replica(model, settings, task, Groups(communicator, communicator), torch.device(rank.device))


def timed_epoch(replica: Replica, dataset: Dataset, state: TrainingState, reporter: Reporter) -> float:
    """The next epoch of our loop; images per second of all ranks. Runs on a rank."""
    figures = train_epoch(replica, dataset, state, reporter)
    state.finish_epoch(figures)
    return figures["rows_per_second"]


def by_hand(dataset: Dataset, settings: Train) -> Iterator[float]:
    """The loop in Horovod's own PyTorch example: images per second of each epoch on this rank. Runs on a rank."""
    import horovod.torch as hvd

    model = build_model(dataset, settings)
    optimizer = build_optimizer(settings, model)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    loader = Loader(dataset, "train", batch_size=settings.batch_size, seed=settings.seed)
    model.train()
    for epoch in range(settings.epochs):
        rows = 0
        started = time.perf_counter()
        for batch in loader.epoch(epoch):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch.inputs), batch.labels)
            loss.backward()
            optimizer.step()
            rows += len(batch.labels)
        yield rows / (time.perf_counter() - started)


def watching_seconds(communicator: Communicator, steps: int = 10_000) -> float:
    """What a step's figures and its part of the trace take, and their exchange at an epoch's end. Runs on ranks."""
    stopwatch = Stopwatch()
    started = time.perf_counter()
    stopwatch.start_epoch(communicator)
    for step in stopwatch.loading(range(steps)):
        if communicator.on_exchange:
            communicator.on_exchange(time.perf_counter(), 1.0)  # as after one that is long enough to be traced
        with stopwatch.phase("save"):
            pass
        stopwatch.finish_step(step)
    stopwatch.end_epoch()
    return (time.perf_counter() - started) / steps


def _measure(dataset: Dataset, rank: Rank) -> tuple[dict[str, list[float]], float]:
    rates: dict[str, list[float]] = {"ours": [], "by hand": []}
    with HorovodBackend().connect() as collectives:
        replica = new_replica(rank, dataset, SETTINGS, collectives)
        reporter = Reporter(rank, replica.task)
        state = TrainingState()
        for theirs in by_hand(dataset, SETTINGS):
            rates["by hand"].append(theirs)
            rates["ours"].append(timed_epoch(replica, dataset, state, reporter))
        watching = watching_seconds(collectives)
    # The first epoch compiles kernels and fills caches.
    return {name: found[1:] for name, found in rates.items()}, watching
