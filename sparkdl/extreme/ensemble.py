"""The meta-models of all repetitions as one classifier: a folder of files, and what it says of rows."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from sparkdl.data import Dataset, InputSpec, SparseBatch, SparseLoader, decode_sparse
from sparkdl.data.card import LabelsFile
from sparkdl.data.labels import read_labels
from sparkdl.data.model_inputs import keep_inputs
from sparkdl.errors import DataError, DatasetError, ModelError
from sparkdl.extreme.decode import Decoder
from sparkdl.extreme.hashing import BucketHash, Family, FeatureHash
from sparkdl.extreme.meta_model import MetaModels
from sparkdl.extreme.metrics import RankingMetrics, evaluate
from sparkdl.extreme.repetitions import (
    Finished,
    fetch_repetition,
    first_layer,
    open_repetition,
    outputs_of,
    weights_name,
)
from sparkdl.settings import Extreme
from sparkdl.settings.section import Positive

__all__ = ["ENSEMBLE_NAME", "Ensemble", "EnsembleCard", "EnsembleModel", "open_model", "write_model_folder"]

log = logging.getLogger(__name__)

ENSEMBLE_NAME = "ensemble.json"
ROWS = 1024
"""Rows that pass through the networks together when a split is evaluated."""


class EnsembleCard(BaseModel):
    """What an ensemble is made of: everything that decides an answer but the weights and the names of the classes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    width: Positive
    """Features of a row."""
    hashed_features: Positive | None = None
    """Columns that each repetition hashes them to, if it does."""
    labels: LabelsFile
    hidden: tuple[Positive, ...]
    buckets: Positive
    hash_family: Family
    seed: int
    """Of the hash functions."""
    loss: Literal["softmax", "binary"]
    asked: Positive
    """How many repetitions were to be trained."""
    repetitions: dict[int, str]
    """Those that were: number to SHA-256 of the weights."""

    @property
    def missing(self) -> tuple[int, ...]:
        """The repetitions that were lost."""
        return tuple(sorted(set(range(self.asked)) - set(self.repetitions)))

    def bucket_hash(self, repetition: int) -> BucketHash:
        """The hash function of one repetition."""
        return BucketHash(self.buckets, seed=self.seed, repetition=repetition, family=self.hash_family)

    def feature_hash(self, repetition: int) -> FeatureHash | None:
        """What one repetition hashes features with, if it does."""
        return FeatureHash(self.hashed_features, self.seed, repetition) if self.hashed_features else None

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read it. Runs anywhere; raises :class:`ModelError` if there is no valid one."""
        try:
            return cls.model_validate_json((folder / ENSEMBLE_NAME).read_bytes())
        except OSError as error:
            raise ModelError(f"the ensemble in {folder} has no readable {ENSEMBLE_NAME}: {error.strerror}") from None
        except ValidationError as error:
            problem = error.errors()[0]
            key = ".".join(map(str, problem["loc"])) or "the file as a whole"
            raise ModelError(
                f"{folder / ENSEMBLE_NAME} does not describe an ensemble: {key}: {problem['msg']}"
            ) from None


class Ensemble:
    """Finished repetitions and the way from their buckets to classes. Runs on the driver or in a task.

    The first layers, which are nearly all of the weights, stay in their files: of these, which are mapped into memory,
    only the rows of features that occur are ever read.
    """

    def __init__(self, folder: Path, card: EnsembleCard) -> None:
        self.card = card
        self.repetitions = tuple(sorted(card.repetitions))
        self._folder = folder
        self._layers = MetaModels(self.repetitions, width=0, hidden=card.hidden, num_buckets=card.buckets)
        self._states = []
        for place, repetition in enumerate(self.repetitions):
            state = open_repetition(folder / weights_name(repetition), sha256=card.repetitions[repetition])
            width, expected = len(state["table"]), card.hashed_features or card.width
            if width != expected:
                raise ModelError(f"repetition {repetition} in {folder} is for {width} features, not {expected}")
            self._states.append(state)
            self._layers.load_state_of(place, {**state, "table": torch.empty(0, outputs_of(state))})

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """The ensemble in a folder, whose checksums are verified.

        Raises :class:`ModelError` for files that are missing, altered or do not fit together.
        """
        card = EnsembleCard.load(Path(folder))
        try:
            return cls(Path(folder), card)
        except (KeyError, RuntimeError) as error:
            raise ModelError(f"the repetitions in {folder} do not fit {ENSEMBLE_NAME}: {error}") from None

    @cached_property
    def label_counts(self) -> NDArray[np.int64]:
        """Training rows that have each class."""
        try:
            counts: NDArray[np.int64] = read_labels(str(self._folder), self.card.labels).column("count").to_numpy()
        except DatasetError as error:
            raise ModelError(f"the ensemble in {self._folder} is damaged: {error}") from None
        return counts

    @torch.no_grad()
    def logits(self, batch: SparseBatch) -> torch.Tensor:
        """Bucket logits of shape (repetitions, rows, buckets)."""
        sums = [
            first_layer(state, _hashed(batch, self.card.feature_hash(repetition)))
            for repetition, state in zip(self.repetitions, self._states, strict=True)
        ]
        return self._layers.behind_first(torch.stack(sums))

    def decoder(self, repetitions: int | None = None) -> Decoder:
        """From the bucket logits of the first so many repetitions (by default all) to classes."""
        return Decoder(
            [self.card.bucket_hash(repetition) for repetition in self.repetitions[:repetitions]],
            self.card.labels.classes,
            estimator="mean_log_probability",
            activation="sigmoid" if self.card.loss == "binary" else "softmax",
            counts=self.label_counts,
        )

    def evaluate(
        self, dataset: Dataset, split: str, *, k: int = 5, repetitions: Sequence[int] = ()
    ) -> dict[int, RankingMetrics]:
        """All metrics up to k on one split, for the first so many ``repetitions`` each (by default all of them).

        Labels that training never saw count as missed, and so do rows that give no finite result, of which a warning
        tells: one of them is no reason to lose an ensemble.
        """
        decoders = {number: self.decoder(number) for number in repetitions or [len(self.repetitions)]}
        predicted: dict[int, list[torch.Tensor]] = {number: [] for number in decoders}
        labels, ends = [], [torch.zeros(1, dtype=torch.int64)]
        for batch in SparseLoader(dataset, split, batch_size=ROWS, shuffle=False).epoch(0):
            logits = self.logits(batch)
            for number, decoder in decoders.items():
                found = decoder.top_k(logits[:number], min(k, dataset.num_classes))
                predicted[number].append(found.classes.where(found.scores.isfinite(), -1))
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
    """What an ensemble says of a column of vectors. Runs anywhere; scoring asks it.

    A class's probability is the geometric mean of what the repetitions give its bucket: what decoding ranks by, and at
    most 1, but not a distribution over all classes, of which most are never looked at.
    """

    ensemble: Ensemble
    decoder: Decoder
    input: InputSpec

    def top_k(
        self, column: pa.Array | pa.ChunkedArray, k: int, *, batch_size: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The k likeliest classes of each row and their probabilities, both of shape (n, k).

        ``column`` holds Spark's vectors as :func:`sparkdl.data.decode_sparse` reads them. Raises :class:`DataError` for
        rows that are null, of another width, or give no finite result.
        """
        indices, values, offsets = decode_sparse(column, self.input)
        rows = len(offsets) - 1
        classes, scores = np.empty((rows, k), np.int64), np.empty((rows, k), np.float64)
        for start in range(0, rows, batch_size):
            stop = min(start + batch_size, rows)
            logits = self.ensemble.logits(_batch(indices, values, offsets[start : stop + 1]))
            found = self.decoder.top_k(logits, k)
            classes[start:stop], scores[start:stop] = found.classes.numpy(), found.scores.double().numpy()
        bad = int(np.count_nonzero(~np.isfinite(scores).all(axis=1)))
        if bad:
            raise DataError(f"column {self.input.column!r}: {bad} rows give no finite result; look there for NaN")
        return classes, np.exp(scores)


def open_model(folder: Path, input: InputSpec, num_classes: int) -> EnsembleModel:
    """The ensemble in a model's folder; nothing there is executed.

    Raises :class:`~sparkdl.errors.ModelError` for files that are missing, altered or do not fit together.
    """
    ensemble = Ensemble.open(folder)
    card = ensemble.card
    if (card.width, card.labels.classes) != (input.shape[0], num_classes):
        raise ModelError(
            f"the ensemble in {folder} is for {card.width} features and {card.labels.classes} classes, and its card "
            f"tells of {input.shape[0]} and {num_classes}; the files of two models were mixed"
        )
    return EnsembleModel(ensemble, ensemble.decoder(), input)


def write_model_folder(folder: Path, dataset: Dataset, settings: Extreme, records: Iterable[Finished]) -> EnsembleCard:
    """Put some finished repetitions, and all that scoring needs beside them, into a new folder. Runs on the driver."""
    if dataset.card.labels is None:
        raise DatasetError(f"{dataset.path} is not sparse; prepare it with `prepare.sparse: true`")
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
    )
    folder.mkdir(parents=True)
    (folder / ENSEMBLE_NAME).write_text(card.model_dump_json(indent=1))
    keep_inputs(dataset, folder)
    for repetition in card.repetitions:
        fetch_repetition(settings.run_dir, repetition, folder)
    return card


def _hashed(batch: SparseBatch, feature_hash: FeatureHash | None) -> SparseBatch:
    if feature_hash is None:
        return batch
    return batch._replace(indices=torch.from_numpy(feature_hash.columns(batch.indices.numpy())))


def _batch(indices: NDArray[np.int32], values: NDArray[np.float32], offsets: NDArray[np.int64]) -> SparseBatch:
    """Some rows as tensors; they have no labels."""
    entries = slice(offsets[0], offsets[-1])
    return SparseBatch(
        torch.from_numpy(indices[entries].astype(np.int64)),
        torch.from_numpy(np.array(values[entries])),
        torch.from_numpy(offsets - offsets[0]),
        torch.empty(0, dtype=torch.int64),
        torch.zeros(len(offsets), dtype=torch.int64),
    )
