"""All meta-models and their ranker as one classifier, which is stored in a folder of files."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from sparkdl.data import Dataset, InputSpec, SparseBatch, SparseLoader, decode_sparse
from sparkdl.data.labels import read_labels
from sparkdl.data.model_inputs import keep_inputs
from sparkdl.data.reading.arrays import require_finite
from sparkdl.data.reading.sparse import to_batch
from sparkdl.data.sparse_rows import Rows
from sparkdl.errors import DataError, DatasetError, ModelError
from sparkdl.extreme.decode import Decoder, TopK
from sparkdl.extreme.ensemble_card import ENSEMBLE_NAME, EnsembleCard
from sparkdl.extreme.hashing import Buckets
from sparkdl.extreme.light_networks import open_light
from sparkdl.extreme.metrics import RankingMetrics, evaluate
from sparkdl.extreme.ranker import Ranker, TrainedRanker, write_ranker
from sparkdl.extreme.repetitions import Finished, fetch_repetition
from sparkdl.extreme.stored_networks import StoredNetworks
from sparkdl.models import checked_form
from sparkdl.settings import Extreme
from sparkdl.settings.compress import FormChoice

__all__ = ["Ensemble", "EnsembleModel", "open_model", "write_model_folder"]

log = logging.getLogger(__name__)

ROWS = 1024
"""Rows that pass through the networks together when a split is evaluated."""


class Networks(Protocol):
    """The networks of an ensemble, in any form of storage."""

    buckets: Sequence[Buckets]
    """The mapping from class to bucket of each repetition."""

    def logits(self, batch: SparseBatch) -> torch.Tensor:
        """Bucket logits of shape (repetitions, rows, buckets)."""


class Ensemble:
    """Finished repetitions and the decoding from their buckets to classes. Runs on the driver or in a task."""

    def __init__(self, folder: Path, card: EnsembleCard, networks: Networks, ranker: Ranker | None) -> None:
        self.card = card
        self.ranker = ranker
        """The ranker of the likeliest classes, if there is one."""
        self.repetitions = tuple(sorted(card.repetitions))
        self.label_counts = _read_counts(folder, card)
        """By class: the training rows that have it."""
        self.buckets = networks.buckets
        """The mapping from class to bucket of each repetition."""
        self._networks = networks
        self._decoders: dict[int, Decoder] = {}

    @classmethod
    def open(cls, folder: str | Path, form: FormChoice = "original") -> Self:
        """Open the ensemble in a folder, whose checksums are verified; of a lighter form, only its own file is opened.

        Raises :class:`ModelError` for files that are missing, altered or do not fit together, and
        :class:`~sparkdl.errors.ConfigError` for a form that is not there.
        """
        folder = Path(folder)
        card = EnsembleCard.load(folder)
        try:
            if form == "int8":
                networks, ranker = open_light(checked_form(folder, form), card)
                return cls(folder, card, networks, ranker)
            ranker = None
            if card.ranker:
                ranker = Ranker.open(folder, card.ranker, width=card.width, num_classes=card.labels.classes)
            return cls(folder, card, StoredNetworks(folder, card), ranker)
        except (KeyError, RuntimeError) as error:
            raise ModelError(f"the repetitions in {folder} do not fit {ENSEMBLE_NAME}: {error}") from None

    def logits(self, batch: SparseBatch) -> torch.Tensor:
        """Bucket logits of shape (repetitions, rows, buckets)."""
        return self._networks.logits(batch)

    def decode(self, logits: torch.Tensor, k: int) -> TopK:
        """The k likeliest classes by the logits of the first repetitions, of shape (repetitions, rows, buckets)."""
        number = len(logits)
        if number not in self._decoders:
            self._decoders[number] = Decoder(
                self.buckets[:number],
                self.card.labels.classes,
                estimator="mean_log_probability",
                activation="sigmoid" if self.card.loss == "binary" else "softmax",
                counts=self.label_counts,
            )
        return self._decoders[number].top_k(logits, k)

    def top_k(self, batch: SparseBatch, logits: torch.Tensor, k: int) -> TopK:
        """The k best classes of a batch's rows, reordered by the ranker if there is one."""
        if self.ranker is None:
            return self.decode(logits, k)
        candidates = min(max(self.ranker.card.candidates, k), self.card.labels.classes)
        return self.ranker.order(batch, self.decode(logits, candidates), k)

    def evaluate(
        self, dataset: Dataset, split: str, *, k: int = 5, repetitions: Sequence[int] = ()
    ) -> dict[int, RankingMetrics]:
        """All metrics up to k on one split, for each of these numbers of first ``repetitions`` (by default all).

        Labels that training never saw count as missed. So do rows without a finite result, of which a warning gives
        the number: a single one should not fail the training.
        """
        predicted: dict[int, list[torch.Tensor]] = {number: [] for number in repetitions or [len(self.repetitions)]}
        labels, ends = [], [torch.zeros(1, dtype=torch.int64)]
        for batch in SparseLoader(dataset, split, batch_size=ROWS, shuffle=False).epoch(0):
            logits = self.logits(batch)
            for number, found_before in predicted.items():
                found = self.top_k(batch, logits[:number], min(k, dataset.num_classes))
                found_before.append(found.classes.where(found.scores.isfinite(), -1))
            labels.append(batch.labels)
            ends.append(batch.label_offsets[1:] + ends[-1][-1])
        bad = max(int((torch.cat(classes) < 0).any(1).sum()) for classes in predicted.values())
        if bad:
            log.warning("%d rows of split %r give no finite result and count as missed", bad, split)
        return {
            number: evaluate(
                torch.cat(classes).numpy(),
                torch.cat(labels).numpy(),
                torch.cat(ends).numpy(),
                counts=self.label_counts,
                num_rows=dataset.rows("train"),
            )
            for number, classes in predicted.items()
        }


@dataclass(frozen=True)
class EnsembleModel:
    """Predicts a column of vectors by an ensemble. Runs anywhere, for example in scoring.

    A class's probability is the geometric mean of the repetitions' probabilities of its bucket, or the ranker's score
    (:meth:`Ranker.order`). It is what classes are ordered by, and at most 1, but the probabilities of all classes need
    not add up to 1.
    """

    ensemble: Ensemble
    input: InputSpec

    def top_k(
        self, column: pa.Array | pa.ChunkedArray, k: int, *, batch_size: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The k likeliest classes of each row and their probabilities, both of shape (n, k).

        ``column`` holds Spark's vectors as :func:`sparkdl.data.decode_sparse` reads them. Raises :class:`DataError` for
        rows that are null, of another width, not finite, or without a finite result.
        """
        indices, values, offsets = decode_sparse(column, self.input)
        require_finite(values, self.input)
        rows = Rows(indices, values, offsets, np.empty(0, np.int64), np.zeros_like(offsets))
        classes, scores = np.empty((rows.rows, k), np.int64), np.empty((rows.rows, k), np.float64)
        for start in range(0, rows.rows, batch_size):
            stop = min(start + batch_size, rows.rows)
            batch = to_batch(rows.part(start, stop))
            found = self.ensemble.top_k(batch, self.ensemble.logits(batch), k)
            classes[start:stop], scores[start:stop] = found.classes.numpy(), found.scores.double().numpy()
        bad = int(np.count_nonzero(~np.isfinite(scores).all(axis=1)))
        if bad:
            raise DataError(f"column {self.input.column!r}: {bad} rows give no finite result; look there for NaN")
        return classes, np.exp(scores)


def open_model(folder: Path, input: InputSpec, num_classes: int, *, form: FormChoice = "original") -> EnsembleModel:
    """Open the ensemble in a model's folder, or a lighter form of it; no code from there is executed.

    Raises :class:`~sparkdl.errors.ModelError` for files that are missing, altered or do not fit together, and
    :class:`~sparkdl.errors.ConfigError` for a form that is not there.
    """
    ensemble = Ensemble.open(folder, form)
    card = ensemble.card
    if (card.width, card.labels.classes) != (input.shape[0], num_classes):
        raise ModelError(
            f"the ensemble in {folder} is for {card.width} features and {card.labels.classes} classes, but its card"
            f" says {input.shape[0]} and {num_classes}: files of two models are mixed; fetch the model again"
        )
    return EnsembleModel(ensemble, input)


def write_model_folder(
    folder: Path,
    dataset: Dataset,
    settings: Extreme,
    records: Iterable[Finished],
    ranker: TrainedRanker | None = None,
) -> EnsembleCard:
    """Write finished repetitions, their ranker and all other files that scoring needs into a new folder.

    Runs on the driver, and, without a ranker, in the tasks that decode shortlists for the ranker's training.
    """
    if dataset.card.labels is None:
        raise DatasetError(f"{dataset.path} is not sparse; prepare it with `prepare.sparse: true`")
    folder.mkdir(parents=True)
    card = EnsembleCard(
        width=dataset.input.shape[0],
        hashed_features=settings.hashed_features,
        labels=dataset.card.labels,
        hidden=tuple(settings.hidden),
        buckets=settings.buckets,
        hash_family=settings.hash_family,
        seed=settings.seed,
        loss=settings.loss,
        asked=settings.repetitions,
        repetitions={record.repetition: record.sha256 for record in records},
        ranker=write_ranker(folder, ranker) if ranker else None,
    )
    (folder / ENSEMBLE_NAME).write_text(card.model_dump_json(indent=1))
    keep_inputs(dataset, folder)
    for repetition in card.repetitions:
        fetch_repetition(settings.run_dir, repetition, folder)
    return card


def _read_counts(folder: Path, card: EnsembleCard) -> NDArray[np.int64]:
    try:
        counts: NDArray[np.int64] = read_labels(str(folder), card.labels).column("count").to_numpy()
    except DatasetError as error:
        raise ModelError(f"the ensemble in {folder} is damaged: {error}") from None
    return counts
