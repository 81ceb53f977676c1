"""Trains a pack of repetitions in a Spark task of its own, without sending weights."""

import time
from statistics import median

import torch
from pyspark import TaskContext

from sparkdl.cluster import device_of_task, limited_threads, retained_memory
from sparkdl.data import Dataset
from sparkdl.extreme.fit import Epoch, choose_buckets, fit
from sparkdl.extreme.hashing import Buckets, BucketTable
from sparkdl.extreme.repetitions import BUCKETS, save_repetition
from sparkdl.settings import Extreme

__all__ = ["Pack", "train_pack"]

Pack = tuple[int, ...]
"""The numbers of the repetitions (or other units of work) that share a task."""


def train_pack(dataset: Dataset, settings: Extreme, made_of: str, pack: Pack) -> list[str]:
    """Train some repetitions and write them for the driver; returns their records. Runs in a task."""
    context = TaskContext.get()
    device = device_of_task(context) if context else "cpu"
    threads = context.cpus() if context else 1
    losses: list[list[float]] = [[] for _ in pack]
    rates: list[float] = []

    def note(_: int, epochs: list[Epoch]) -> None:
        rates.append(epochs[0].rows_per_second)
        for history, epoch in zip(losses, epochs, strict=True):
            history.append(epoch.loss)

    started = time.perf_counter()
    with limited_threads(threads), retained_memory():
        buckets = choose_buckets(dataset, settings, pack)
        models = fit(dataset, settings, buckets, device=device, on_epoch=note)
    seconds = time.perf_counter() - started
    return [
        save_repetition(
            settings.run_dir,
            repetition,
            models.state_of(place) | _table_of(buckets[repetition]),
            made_of=made_of,
            losses=losses[place],
            rate=median(rates),
            seconds=seconds,
        ).to_json()
        for place, repetition in enumerate(pack)
    ]


def _table_of(buckets: Buckets) -> dict[str, torch.Tensor]:
    return {BUCKETS: torch.from_numpy(buckets.of_classes)} if isinstance(buckets, BucketTable) else {}
