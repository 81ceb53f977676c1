"""The meta-models of all repetitions as one classifier."""

from collections.abc import Sequence
from pathlib import Path

import torch

from sparkdl.data import Dataset, SparseBatch, SparseLoader
from sparkdl.extreme.decode import Decoder, TopK
from sparkdl.extreme.estimators import Estimator
from sparkdl.extreme.fit import bucket_hash
from sparkdl.extreme.meta_model import MetaModels
from sparkdl.extreme.metrics import Evaluation, evaluate
from sparkdl.extreme.store import load_repetition
from sparkdl.settings import Extreme

__all__ = ["Ensemble"]

ROWS = 1024
"""Rows that pass through the networks together when a split is evaluated."""


class Ensemble:
    """Finished repetitions and the way from their buckets to classes. Runs on the driver or in a task.

    Raises :class:`~sparkdl.errors.ModelError` for a repetition that is missing or was altered.
    """

    def __init__(
        self,
        folder: str | Path,
        dataset: Dataset,
        settings: Extreme,
        repetitions: Sequence[int],
        *,
        estimator: Estimator = "mean_log_probability",
    ) -> None:
        self.repetitions = tuple(repetitions)
        self.models = MetaModels(
            repetitions,
            width=dataset.input.shape[0],
            hidden=settings.hidden,
            num_buckets=settings.buckets,
            seed=settings.seed,
        )
        for place, repetition in enumerate(repetitions):
            self.models.load_state_of(place, load_repetition(Path(folder), repetition))
        self.decoder = Decoder(
            [bucket_hash(settings, repetition) for repetition in repetitions],
            dataset.num_classes,
            estimator=estimator,
            activation="sigmoid" if settings.loss == "binary" else "softmax",
            counts=dataset.label_counts,
        )
        self._dataset = dataset

    def top_k(self, batch: SparseBatch, k: int) -> TopK:
        """The k best classes of each row, with scores."""
        return self.decoder.top_k(self.models.logits(batch), k)

    def evaluate(self, split: str, *, k: int = 5) -> Evaluation:
        """All metrics up to k on one split; labels that training never saw count as missed."""
        predicted, labels, ends = [], [], [torch.zeros(1, dtype=torch.int64)]
        for batch in SparseLoader(self._dataset, split, batch_size=ROWS, shuffle=False).epoch(0):
            predicted.append(self.top_k(batch, min(k, self._dataset.num_classes)).classes)
            labels.append(batch.labels)
            ends.append(batch.label_offsets[1:] + ends[-1][-1])
        return evaluate(
            torch.cat(predicted).numpy(),
            torch.cat(labels).numpy(),
            torch.cat(ends).numpy(),
            counts=self._dataset.label_counts,
            num_rows=self._dataset.rows("train"),
        )
