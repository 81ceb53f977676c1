"""The second stage: linear classifiers, one per class, which reorder a row's shortlist. Runs anywhere."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from pydantic import BaseModel, ConfigDict
from safetensors.torch import save

from sparkdl.data import SparseBatch
from sparkdl.errors import ModelError
from sparkdl.extreme.decode import TopK
from sparkdl.extreme.repetitions import open_weights
from sparkdl.settings import LinearRankerOptions
from sparkdl.settings.section import Positive

__all__ = ["RANKER_NAME", "Classifiers", "Ranker", "RankerCard", "TrainedRanker", "write_ranker"]

RANKER_NAME = "ranker.safetensors"


class RankerCard(BaseModel):
    """Describes a ranker, except its weights."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    candidates: Positive
    """The number of likeliest classes that it orders."""
    ensemble_weight: float
    """The weight of the meta-models in a class's score."""
    sha256: str
    """The SHA-256 of the file of weights."""


class Classifiers(NamedTuple):
    """Linear classifiers of K classes: that of class k has the weights from ``ends[k]`` to ``ends[k + 1]``."""

    features: NDArray[np.int32]
    """Of shape (m,): the feature of each weight."""
    values: NDArray[Any]
    """Of shape (m,): float32, or int8 where each class has a scale."""
    ends: NDArray[np.int64]
    """Of shape (K + 1,)."""
    biases: NDArray[np.float32]
    """Of shape (K,)."""

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """The classifiers of some ranges of classes, one after another."""
        lengths = np.concatenate([np.diff(part.ends) for part in parts])
        return cls(
            np.concatenate([part.features for part in parts]),
            np.concatenate([part.values for part in parts]),
            np.concatenate([[0], np.cumsum(lengths)]),
            np.concatenate([part.biases for part in parts]),
        )

    @classmethod
    def from_tensors(cls, tensors: dict[str, torch.Tensor]) -> Self:
        """From the tensors of a file, without a copy. Raises KeyError if tensors are missing."""
        return cls(*(tensors[name].numpy() for name in cls._fields))

    def to_tensors(self) -> dict[str, torch.Tensor]:
        """The tensors for a file."""
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in self._asdict().items()}

    def fit(self, width: int, num_classes: int, *, values: DTypeLike = np.float32) -> bool:
        """Whether they are consistent, with this many features and classes; compiled loops do not check."""
        return (
            [array.dtype for array in self] == [np.int32, values, np.int64, np.float32]
            and (len(self.biases), len(self.ends)) == (num_classes, num_classes + 1)
            and len(self.features) == len(self.values) == self.ends[-1]
            and self.ends[0] == 0
            and bool((np.diff(self.ends) >= 0).all())
            and (not len(self.features) or 0 <= self.features.min() <= self.features.max() < width)
        )


class TrainedRanker(NamedTuple):
    """The result of training."""

    classifiers: Classifiers
    options: LinearRankerOptions


def write_ranker(folder: Path, trained: TrainedRanker) -> RankerCard:
    """Write a ranker into a model's folder. Runs on the driver."""
    content = save(trained.classifiers.to_tensors())
    (folder / RANKER_NAME).write_bytes(content)
    return RankerCard(
        candidates=trained.options.candidates,
        ensemble_weight=trained.options.ensemble_weight,
        sha256=hashlib.sha256(content).hexdigest(),
    )


class Ranker:
    """Classifiers whose weights stay in their file, which is mapped into memory."""

    def __init__(
        self,
        card: RankerCard,
        classifiers: Classifiers,
        *,
        width: int,
        scales: NDArray[np.float32] | None = None,
    ) -> None:
        """``scales``, of shape (K,), has a factor for the weights of each class, by default 1."""
        self.card, self.classifiers = card, classifiers
        self._width = width
        self._scales = np.broadcast_to(np.float32(1), len(classifiers.biases)) if scales is None else scales

    @classmethod
    def open(cls, folder: Path, card: RankerCard, *, width: int, num_classes: int) -> Self:
        """The ranker in a model's folder. Raises :class:`ModelError` for a file that is altered or does not fit."""
        classifiers = Classifiers.from_tensors(open_weights(folder / RANKER_NAME, sha256=card.sha256))
        if not classifiers.fit(width, num_classes):
            raise ModelError(f"{folder / RANKER_NAME} is not for {width} features and {num_classes} classes")
        return cls(card, classifiers, width=width)

    def order(self, batch: SparseBatch, candidates: TopK, k: int) -> TopK:
        """The k best of each row's candidates, both of shape (n, ...) and best first.

        With the margin m of a class's classifier, its score is -max(0, 1 - m)^2, as for a tree's leaves (Prabhu et al.,
        2018), plus the weighted score of the meta-models, which is their mean log-probability.
        """
        from sparkdl.extreme import linear, loops  # only where there is a ranker: they load Numba

        features, values, ends = (each.numpy() for each in (batch.indices, batch.values, batch.offsets))
        classes = candidates.classes.numpy()
        margins = np.empty(classes.shape, np.float32)
        rows = features, values, ends, self._width
        loops.in_threads(linear.margins, len(classes), *rows, classes, *self.classifiers, self._scales, margins)
        losses = torch.from_numpy(margins).neg_().add_(1).clamp_(min=0).square_()
        scores = self.card.ensemble_weight * candidates.scores - losses
        best = scores.topk(k)
        return TopK(candidates.classes.gather(1, best.indices), best.values)
