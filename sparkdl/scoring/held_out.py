"""Checks that a split holds the same rows as when the model was trained. Runs on the driver."""

from sparkdl.data.model_card import ModelCard
from sparkdl.data.preparing.decisions import differing
from sparkdl.errors import ConfigError
from sparkdl.settings import Prepare

__all__ = ["check_split"]

_OF_SPLITS = "features", "image", "label", "qid", "seed", "split", "weight"
"""The settings of ``prepare`` that decide which rows are in a split: by a rule, or by a hash of the columns."""


def check_split(card: ModelCard, settings: Prepare, *, origin: str) -> None:
    """Raise :class:`ConfigError` if these settings put other rows into the splits than the model's dataset has there.

    Otherwise the model would be evaluated on rows that it was trained on. ``origin`` is the model's name.
    """
    if settings.in_place:
        raise ConfigError(
            "score.split: with `prepare.in_place`, a row's split depends on its position in its file, which is unknown"
            " here; remove score.split"
        )
    if card.settings and (changed := differing(card.settings, settings, _OF_SPLITS)):
        raise ConfigError(
            f"score.split: the dataset of {origin} has other rows in its splits, because in `prepare`"
            f" {'; '.join(changed)}; score with the settings with which that dataset was prepared"
        )
