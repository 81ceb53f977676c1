"""The one training loop. Runs on ranks.

Every rank takes the same number of steps. A batch may hold fewer rows on one rank than on another (the last of an
epoch), so that each rank weighs its mean loss by its share of the step's rows: the average over ranks is then the exact
mean over all of them.
"""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from sparkdl.cluster import Rank
from sparkdl.collectives import HorovodCollectives
from sparkdl.data import Batch, Dataset, Loader
from sparkdl.models import build
from sparkdl.settings import Train
from sparkdl.training.checkpoint import BEST, LAST, load_checkpoint, save_checkpoint
from sparkdl.training.evaluation import Evaluation, evaluate
from sparkdl.training.recipe import autocast, build_loss, build_optimizer, rate_at
from sparkdl.training.reporter import Reporter
from sparkdl.training.strategies import Strategy, create_strategy

EVALUATION_BATCH = 512  # rows; larger than a training batch, since no gradient is kept

__all__ = ["Job", "Outcome", "Replica", "build_model", "train_epoch", "train_rank"]


@dataclass(frozen=True)
class Job:
    """What the driver sends to every rank."""

    dataset: Dataset
    settings: Train
    folder: str
    """The run's directory, on storage that all ranks reach."""
    start_weights: str | None = None
    """A checkpoint whose model replaces the initial weights."""


@dataclass(frozen=True)
class Outcome:
    """What rank 0 brings home."""

    history: list[dict[str, float]]
    """One entry per epoch: means over its rows, rows per second, and the validation figures after it."""
    best_epoch: int
    """Which entry of the history is the best checkpoint, from 0."""
    evaluations: dict[str, Evaluation]
    """The best checkpoint on every split but ``train``."""


def build_model(dataset: Dataset, settings: Train) -> nn.Module:
    """The network for this dataset; the same seed gives the same weights on every rank."""
    torch.manual_seed(settings.seed)
    return build(
        settings.model,
        input_shape=dataset.input.shape,
        num_classes=dataset.num_classes,
        mean=dataset.input.mean,
        std=dataset.input.std,
        options=settings.model_options,
    )


class Replica:
    """One rank's copy of the model, with what a step needs."""

    def __init__(self, model: nn.Module, settings: Train, strategy: Strategy, device: torch.device) -> None:
        self.settings = settings
        self.strategy = strategy
        self.device = device
        self.model = model.to(device)
        self.loss = build_loss(settings)
        self.optimizer = build_optimizer(settings, self.model)
        strategy.start(self.model)
        self.scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "float16")

    def step(self, batches: list[Batch], *, rate: float) -> tuple[torch.Tensor, torch.Tensor, int]:
        """One optimizer step over ``accumulation`` batches: this rank's summed loss, correct answers and rows."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        share = self.strategy.collectives.size / sum(batch.global_rows for batch in batches)
        loss_sum = torch.zeros((), device=self.device)
        correct = torch.zeros((), device=self.device)
        rows = 0
        for batch in batches:
            if batch is batches[-1]:
                self.strategy.begin_last_pass()
            if not len(batch.labels):
                continue  # this rank's rows have run out; the others' gradients still arrive
            inputs = batch.inputs.to(self.device, non_blocking=True)
            labels = batch.labels.to(self.device, non_blocking=True)
            with autocast(self.settings, self.device):
                outputs = self.model(inputs)
                total = self.loss(outputs, labels) * len(labels)
            self.scaler.scale(total * share).backward()
            loss_sum += total.detach()
            correct += (outputs.detach().argmax(dim=1) == labels).sum()
            rows += len(labels)
        self.strategy.reduce_gradients()
        if self.settings.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss_sum, correct, rows


def train_rank(job: Job, rank: Rank) -> Outcome | None:
    """Train on this rank; rank 0 returns the outcome.

    Raises :class:`~sparkdl.errors.TrainingError` when the loss is no longer a number; the last good checkpoint stays.
    """
    settings = job.settings
    device = torch.device(rank.device)
    with HorovodCollectives() as collectives:
        model = build_model(job.dataset, settings)
        if job.start_weights and rank.rank == 0:
            model.load_state_dict(load_checkpoint(job.start_weights)["model"])
        replica = Replica(model, settings, create_strategy(settings.strategy, collectives), device)
        torch.manual_seed(settings.seed + 1 + rank.rank)  # equal weights, but dropout of its own
        reporter = Reporter(rank)
        history: list[dict[str, float]] = []
        best_epoch = 0
        for epoch in range(settings.epochs):
            figures = train_epoch(replica, job.dataset, epoch, reporter)
            replica.strategy.agree(replica.model)
            if "validation" in job.dataset.splits:
                found = evaluate_split(replica, job.dataset, "validation")
                figures |= {"validation_loss": found.loss, "validation_accuracy": found.accuracy}
            history.append(figures)
            reporter.epoch(epoch, figures)
            if _merit(figures, settings) >= _merit(history[best_epoch], settings):
                best_epoch = epoch
            if rank.rank == 0:
                _save(job, replica, history, best=best_epoch == epoch)
        collectives.barrier()  # the best checkpoint is whole before anyone reads it
        replica.model.load_state_dict(load_checkpoint(f"{job.folder}/{BEST}", device)["model"])
        held_out = [split for split in job.dataset.splits if split != "train"]
        evaluations = {split: evaluate_split(replica, job.dataset, split) for split in held_out}
    return Outcome(history, best_epoch, evaluations) if rank.rank == 0 else None


def train_epoch(replica: Replica, dataset: Dataset, epoch: int, reporter: Reporter) -> dict[str, float]:
    """All steps of one epoch: the means over the rows of all ranks, and the rows per second of all ranks together."""
    settings, collectives = replica.settings, replica.strategy.collectives
    loader = _loader(replica, dataset, "train", shuffle=True)
    steps = -(-loader.steps // settings.accumulation)
    started = time.perf_counter()
    reporter.start_epoch(epoch, steps=steps, epochs=settings.epochs)
    replica.model.train()
    for number, batches in enumerate(_grouped(loader.epoch(epoch), settings.accumulation)):
        step = epoch * steps + number
        rate = rate_at(settings, step, steps_per_epoch=steps, size=collectives.size)
        loss_sum, correct, rows = replica.step(batches, rate=rate)
        reporter.step(step, loss_sum, correct, rows=rows, global_rows=sum(b.global_rows for b in batches), rate=rate)
    loss, correct_rows, rows_seen = collectives.allreduce(reporter.epoch_totals(), op="sum").tolist()
    return {
        "train_loss": loss / rows_seen,
        "train_accuracy": correct_rows / rows_seen,
        "rows_per_second": rows_seen / (time.perf_counter() - started),
    }


def evaluate_split(replica: Replica, dataset: Dataset, split: str) -> Evaluation:
    """The exact figures of the current weights on one split, the same on every rank."""
    loader = _loader(replica, dataset, split, shuffle=False)
    return evaluate(
        replica.model,
        loader.epoch(0),
        loss=build_loss(replica.settings, smoothing=False),
        num_classes=dataset.num_classes,
        collectives=replica.strategy.collectives,
        device=replica.device,
        context=autocast(replica.settings, replica.device),
    )


def _loader(replica: Replica, dataset: Dataset, split: str, *, shuffle: bool) -> Loader:
    collectives, settings = replica.strategy.collectives, replica.settings
    return Loader(
        dataset,
        split,
        batch_size=settings.batch_size if shuffle else max(settings.batch_size, EVALUATION_BATCH),
        rank=collectives.rank,
        size=collectives.size,
        seed=settings.seed,
        shuffle=shuffle,
    )


def _grouped(batches: Iterator[Batch], count: int) -> Iterator[list[Batch]]:
    """The batches of each optimizer step; the last step of an epoch may have fewer."""
    while group := list(itertools.islice(batches, count)):
        yield group


def _merit(figures: dict[str, float], settings: Train) -> float:
    """What makes one epoch better than another; without a validation split every epoch is better than the last."""
    if settings.best_by == "loss":
        return -figures.get("validation_loss", 0.0)
    return figures.get("validation_accuracy", 0.0)


def _save(job: Job, replica: Replica, history: list[dict[str, float]], *, best: bool) -> None:
    for name in [LAST, BEST] if best else [LAST]:
        save_checkpoint(
            f"{job.folder}/{name}",
            model=replica.model,
            optimizer=replica.optimizer,
            epoch=len(history),
            history=history,
        )
