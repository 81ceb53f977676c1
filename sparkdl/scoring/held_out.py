"""Whether the rows of a split are those that a model has there, and so has not seen. Runs on the driver."""

from sparkdl.data.model_card import ModelCard
from sparkdl.data.preparing.decisions import differing
from sparkdl.errors import ConfigError
from sparkdl.settings import Prepare

__all__ = ["check_split"]

_OF_SPLITS = "features", "image", "label", "qid", "seed", "split", "weight"
"""The settings of ``prepare`` that decide which rows are in a split: by a rule, or by a hash of the columns."""


def check_split(card: ModelCard, settings: Prepare, *, origin: str) -> None:
    """Raise :class:`ConfigError` where these settings put other rows into splits than a model's dataset has there.

    ``origin`` is the model's name. What it was trained on would otherwise count as what it has not seen.
    """
    if settings.in_place:
        raise ConfigError(
            "score.split: rows that stay in place (`prepare.in_place`) are drawn for splits by their places in their"
            " files, which a table does not show; leave score.split out"
        )
    if card.settings and (changed := differing(card.settings, settings, _OF_SPLITS)):
        raise ConfigError(
            f"score.split: the dataset of {origin} has other rows in its splits, since in `prepare`"
            f" {'; '.join(changed)}; score with the settings that it was prepared with"
        )
