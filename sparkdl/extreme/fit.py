"""Trains meta-models, epoch by epoch over the same batches, without communication. Runs in a task.

The first layer is trained lazily, as embeddings are: only rows of features that occur in a batch change. Each row of
each repetition has one step size, from a running mean of its squared gradients (row-wise adaptive steps: Mudigere et
al., 2022, arXiv 2104.05158, section 4.1.2), so that the optimizer's state is a fraction of the weights'. The mean of a
row that was seldom met is small, and its step long: up to 32 times the rate. The other layers are trained by Adam
(Kingma and Ba, 2015, arXiv 1412.6980).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from sparkdl.data import Dataset, SparseBatch, SparseLoader
from sparkdl.errors import TrainingError
from sparkdl.extreme.first_layer import Step, add_up, step_rows
from sparkdl.extreme.hashing import BucketHash, Buckets, BucketTable, FeatureHash, table
from sparkdl.extreme.meta_model import MetaModels
from sparkdl.settings import Extreme

__all__ = ["Epoch", "bucket_hash", "choose_buckets", "fit", "new_models"]

MEMORY = 0.999
"""The decay of the running mean of squared gradients."""
EPSILON = 1e-8
WARMUP = 0.05
"""The share of training in which the rate rises to its full value; from there it falls linearly to zero."""


@dataclass(frozen=True)
class Epoch:
    """The figures of one epoch of one repetition."""

    loss: float
    """Mean over rows."""
    rows_per_second: float
    """Rows per second of the whole pack."""


def bucket_hash(settings: Extreme, repetition: int) -> BucketHash:
    """The hash function of one repetition."""
    return BucketHash(settings.buckets, seed=settings.seed, repetition=repetition, family=settings.hash_family)


def choose_buckets(dataset: Dataset, settings: Extreme, repetitions: Sequence[int]) -> dict[int, Buckets]:
    """The buckets of some repetitions; with ``mixed`` hashing, those of odd repetitions are clusters."""
    found: dict[int, Buckets] = {number: bucket_hash(settings, number) for number in repetitions}
    clustered = [n for n in found if settings.hashing == "clusters" or (settings.hashing == "mixed" and n % 2)]
    if clustered:
        from sparkdl.extreme.clusters import class_sums, cluster_classes  # only where needed: Numba

        sums = class_sums(dataset)
        for number in clustered:
            buckets = cluster_classes(sums, settings.buckets, seed=settings.seed, repetition=number)
            found[number] = BucketTable(settings.buckets, buckets)
    return found


def new_models(settings: Extreme, width: int, repetitions: Sequence[int]) -> MetaModels:
    """The meta-models of some repetitions over ``width`` features, before training."""
    columns = settings.hashed_features
    return MetaModels(
        repetitions,
        width=columns or width,
        hidden=settings.hidden,
        num_buckets=settings.buckets,
        feature_hashes=[FeatureHash(columns, settings.seed, each) for each in repetitions] if columns else (),
        seed=settings.seed,
    )


def fit(
    dataset: Dataset,
    settings: Extreme,
    buckets: Mapping[int, Buckets],
    *,
    device: torch.device | str = "cpu",
    on_epoch: Callable[[int, list[Epoch]], None] = lambda number, epochs: None,
) -> MetaModels:
    """Train the meta-models of some repetitions in one computation; calls ``on_epoch`` after each epoch.

    ``buckets`` are those of each repetition, by its number.
    Raises :class:`~sparkdl.errors.TrainingError` when a loss is not finite.
    """
    repetitions = tuple(buckets)
    places = torch.from_numpy(table(tuple(buckets.values()), dataset.num_classes))
    models = new_models(settings, dataset.input.shape[0], repetitions).to(device)
    loader = SparseLoader(dataset, "train", batch_size=settings.batch_size, seed=settings.seed)
    steps = _Steps(models, settings, settings.epochs * loader.steps)
    for number in range(settings.epochs):
        started = time.perf_counter()
        losses = torch.zeros(len(repetitions), dtype=torch.float64, device=device)
        for batch in loader.epoch(number):
            losses += steps.take(batch, places)
        means = (losses / loader.rows).tolist()
        rate = loader.rows / (time.perf_counter() - started)
        for repetition, mean in zip(repetitions, means, strict=True):
            if not np.isfinite(mean):
                raise TrainingError(
                    f"the loss of repetition {repetition} is not a number after epoch {number + 1}; lower "
                    f"extreme.learning_rate, which is {settings.learning_rate:g}"
                )
        on_epoch(number, [Epoch(mean, rate) for mean in means])
    return models


class _Steps:
    """The optimizer of a pack of meta-models."""

    def __init__(self, models: MetaModels, settings: Extreme, total: int) -> None:
        self._models, self._settings, self._total = models, settings, total
        self._adam = torch.optim.Adam(models.parameters(), lr=settings.learning_rate)
        parts = models.rows.shape[1] // models.biases[0].shape[2]
        self._squares = models.rows.new_zeros(len(models.rows), parts)
        self._taken = 0
        self._random = [
            torch.Generator(models.rows.device).manual_seed(settings.seed % 2**31 + repetition * 2**31)
            for repetition in models.repetitions
        ]

    def take(self, batch: SparseBatch, buckets: torch.Tensor) -> torch.Tensor:
        """Take one step; returns each repetition's loss, summed over rows, of shape (R,)."""
        models = self._models
        found = models.occurrences(batch)
        sums = add_up(models.rows, found).requires_grad_()
        logits = models(sums, drop=self._drop if self._settings.dropout else None)
        losses = bucket_losses(logits, batch, buckets.to(logits.device), self._settings.loss)
        self._adam.zero_grad()
        (losses.sum() / max(logits.shape[1], 1)).backward()
        rate = self._rate()
        for group in self._adam.param_groups:
            group["lr"] = rate
        self._adam.step()
        self._taken += 1
        if sums.grad is not None:
            step = Step(rate, MEMORY, 1 - MEMORY**self._taken, EPSILON)
            step_rows(models.rows, self._squares, found, sums.grad, step)
        return losses.detach().double()

    def _drop(self, values: torch.Tensor) -> torch.Tensor:
        """Dropout of hidden values of shape (R, n, w); each repetition draws its own masks, as if it were alone."""
        kept = 1 - self._settings.dropout
        masks = torch.empty_like(values)
        for mask, generator in zip(masks, self._random, strict=True):
            mask.bernoulli_(kept, generator=generator)
        return values * masks.div_(kept)

    def _rate(self) -> float:
        part = self._taken / self._total
        return self._settings.learning_rate * min((self._taken + 1) / (WARMUP * self._total + 1), 1.0) * (1 - part)


def bucket_losses(logits: torch.Tensor, batch: SparseBatch, buckets: torch.Tensor, loss: str) -> torch.Tensor:
    """The loss of each repetition, summed over rows, from logits of shape (R, n, B) and the buckets (R, K) of classes.

    A row's target is the union of its labels' buckets. ``softmax`` is the cross-entropy with equal shares for them
    (for one label, plain cross-entropy); ``binary`` the cross-entropy of each bucket by itself, summed.
    """
    counts = batch.label_offsets.diff().to(logits.device)
    row_of = torch.repeat_interleave(torch.arange(len(counts), device=logits.device), counts)
    hit = buckets[:, batch.labels.to(logits.device)].long()
    if loss == "softmax" and len(row_of) == len(counts) and bool((counts == 1).all()):
        return (
            functional.cross_entropy(logits.flatten(0, 1), hit.flatten(), reduction="none").view(len(logits), -1).sum(1)
        )
    targets = torch.zeros_like(logits)
    targets[torch.arange(len(logits), device=logits.device)[:, None], row_of, hit] = 1.0
    if loss == "binary":
        return functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum((1, 2))
    targets /= targets.sum(2, keepdim=True).clamp_(min=1.0)
    return -(functional.log_softmax(logits, dim=2) * targets).sum((1, 2))
