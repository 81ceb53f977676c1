"""The meta-models of all repetitions as one classifier."""

from collections.abc import Sequence
from pathlib import Path

import torch

from sparkdl.data import Dataset, SparseLoader
from sparkdl.extreme.decode import Decoder
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
        )
        for place, repetition in enumerate(repetitions):
            self.models.load_state_of(place, load_repetition(Path(folder), repetition))
        self._dataset, self._settings, self._estimator = dataset, settings, estimator

    def decoder(self, repetitions: int | None = None) -> Decoder:
        """From the bucket logits of the first so many repetitions (by default all) to classes."""
        return Decoder(
            [bucket_hash(self._settings, repetition) for repetition in self.repetitions[:repetitions]],
            self._dataset.num_classes,
            estimator=self._estimator,
            activation="sigmoid" if self._settings.loss == "binary" else "softmax",
            counts=self._dataset.label_counts,
        )

    def evaluate(self, split: str, *, k: int = 5, repetitions: Sequence[int] | None = None) -> dict[int, Evaluation]:
        """All metrics up to k on one split, for the first so many ``repetitions`` each (by default all).

        Labels that training never saw count as missed.
        """
        decoders = {number: self.decoder(number) for number in repetitions or [len(self.repetitions)]}
        predicted: dict[int, list[torch.Tensor]] = {number: [] for number in decoders}
        labels, ends = [], [torch.zeros(1, dtype=torch.int64)]
        for batch in SparseLoader(self._dataset, split, batch_size=ROWS, shuffle=False).epoch(0):
            logits = self.models.logits(batch)
            for number, decoder in decoders.items():
                predicted[number].append(decoder.top_k(logits[:number], min(k, self._dataset.num_classes)).classes)
            labels.append(batch.labels)
            ends.append(batch.label_offsets[1:] + ends[-1][-1])
        return {
            number: evaluate(
                torch.cat(classes).numpy(),
                torch.cat(labels).numpy(),
                torch.cat(ends).numpy(),
                counts=self._dataset.label_counts,
                num_rows=self._dataset.rows("train"),
            )
            for number, classes in predicted.items()
        }
