"""The settings of a pipeline.

A pipeline's file has the sections ``prepare``, ``train``, ``extreme``, ``compress``, ``score``, ``cluster`` and
``tracking``; each is a frozen class here, and the text under each field is its documentation. The same classes are the
arguments of :func:`sparkdl.prepare`, :func:`sparkdl.train` and :func:`sparkdl.score`, so that a notebook and a job mean
the same thing by the same word.
"""

from typing import Any

from pydantic import model_validator

from sparkdl.errors import ConfigError
from sparkdl.settings.cluster import Cluster, RankRange, Resources
from sparkdl.settings.compress import Compress, FormGate
from sparkdl.settings.extreme import Extreme, LinearRankerOptions, NoRankerOptions
from sparkdl.settings.named_inputs import Input
from sparkdl.settings.prepare import Prepare
from sparkdl.settings.score import Score
from sparkdl.settings.section import Section
from sparkdl.settings.source import Source
from sparkdl.settings.split import Split, TimeSplit
from sparkdl.settings.stage_options import Stage
from sparkdl.settings.strategies import AllReduceOptions
from sparkdl.settings.tracking import Gate, Tracking
from sparkdl.settings.train import Recipe, Train

__all__ = [
    "AllReduceOptions",
    "Cluster",
    "Compress",
    "Extreme",
    "FormGate",
    "Gate",
    "Input",
    "LinearRankerOptions",
    "NoRankerOptions",
    "Prepare",
    "RankRange",
    "Recipe",
    "Resources",
    "Score",
    "Section",
    "Settings",
    "Source",
    "Split",
    "Stage",
    "TimeSplit",
    "Tracking",
    "Train",
]


class Settings(Section):
    """A whole pipeline."""

    prepare: Prepare | None = None
    train: Train = Train()
    extreme: Extreme = Extreme()
    compress: Compress = Compress()
    score: Score = Score()
    cluster: Cluster = Cluster()
    tracking: Tracking = Tracking()

    @model_validator(mode="before")
    @classmethod
    def _prepared_for_training(cls, values: Any) -> Any:
        """What training reads is what is prepared, where nothing else is said."""
        match values:
            case {"prepare": dict() as prepare, "train": {"dataset": str() as dataset}} if "output" not in prepare:
                return {**values, "prepare": {**prepare, "output": dataset}}
        return values

    def require(self, key: str) -> Any:
        """The value of a key that a job cannot do without, for example ``prepare.source``.

        Raises :class:`ConfigError` if the file does not set it.
        """
        value: Any = self
        for part in key.split("."):
            value = getattr(value, part)
            if value is None:
                raise ConfigError(f"the configuration does not set {key!r}, which this job needs")
        return value
