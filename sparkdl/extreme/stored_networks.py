"""The networks of an ensemble as training stores them: one file per repetition."""

from collections.abc import Sequence
from pathlib import Path

import torch

from sparkdl.data import SparseBatch
from sparkdl.errors import ModelError
from sparkdl.extreme.ensemble_card import EnsembleCard
from sparkdl.extreme.hashing import Buckets, BucketTable, FeatureHash
from sparkdl.extreme.meta_model import MetaModels
from sparkdl.extreme.repetitions import BUCKETS, first_layer, open_weights, outputs_of, weights_name

__all__ = ["StoredNetworks", "buckets_of", "hashed"]


class StoredNetworks:
    """All repetitions of a folder. Runs on the driver or in a task.

    The first layers, nearly all of the weights, stay in their files, which are mapped into memory: only the rows of
    features that occur are read. Raises :class:`ModelError` for files that are missing, altered or for another number
    of features, KeyError and RuntimeError for files that do not fit the card in other ways.
    """

    def __init__(self, folder: Path, card: EnsembleCard) -> None:
        self._card, self._repetitions = card, tuple(sorted(card.repetitions))
        self._layers = MetaModels(self._repetitions, width=0, hidden=card.hidden, num_buckets=card.buckets)
        self._states = []
        buckets: list[Buckets] = []
        for place, repetition in enumerate(self._repetitions):
            state = open_weights(folder / weights_name(repetition), sha256=card.repetitions[repetition])
            width, expected = len(state["table"]), card.hashed_features or card.width
            if width != expected:
                raise ModelError(f"repetition {repetition} in {folder} is for {width} features, not {expected}")
            buckets.append(buckets_of(card, repetition, state.pop(BUCKETS, None)))
            self._states.append(state)
            self._layers.load_state_of(place, {**state, "table": torch.empty(0, outputs_of(state))})
        self.buckets: Sequence[Buckets] = buckets
        """The mapping from class to bucket of each repetition."""

    @torch.no_grad()
    def logits(self, batch: SparseBatch) -> torch.Tensor:
        """Bucket logits of shape (repetitions, rows, buckets)."""
        sums = [
            first_layer(state, hashed(batch, self._card.feature_hash(repetition)))
            for repetition, state in zip(self._repetitions, self._states, strict=True)
        ]
        return self._layers.behind_first(torch.stack(sums))


def buckets_of(card: EnsembleCard, repetition: int, table: torch.Tensor | None) -> Buckets:
    """The mapping from class to bucket: a hash function, or a repetition's table, which is checked.

    Compiled loops do not check indices. Raises :class:`ModelError` for a table that does not fit.
    """
    if table is None:
        return card.bucket_hash(repetition)
    if table.dtype != torch.int32 or len(table) != card.labels.classes:
        raise ModelError(f"a table of {len(table)} buckets ({table.dtype}) is not for {card.labels.classes} classes")
    if not 0 <= table.min() <= table.max() < card.buckets:
        raise ModelError(f"a table of buckets has {table.min()} to {table.max()}, beyond the {card.buckets} there are")
    return BucketTable(card.buckets, table.numpy())


def hashed(batch: SparseBatch, feature_hash: FeatureHash | None) -> SparseBatch:
    """The batch with its features hashed as in a repetition, if it hashes them."""
    if feature_hash is None:
        return batch
    return batch._replace(indices=torch.from_numpy(feature_hash.columns(batch.indices.numpy())))
