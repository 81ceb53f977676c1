"""The settings of a pipeline.

A pipeline's file has the sections ``prepare``, ``train``, ``tune``, ``extreme``, ``compress``, ``score``, ``cluster``
and ``tracking``; each is a frozen class here, and the text under each field is its documentation. The same classes are
the arguments of :func:`sparkdl.prepare`, :func:`sparkdl.train` and :func:`sparkdl.score`, so that a notebook and a job
mean the same thing by the same word.
"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import model_validator

from sparkdl.errors import ConfigError
from sparkdl.settings.cluster import Cluster, RankLayout, RankRange, Resources
from sparkdl.settings.compress import Compress, FormGate
from sparkdl.settings.extreme import Extreme, LinearRankerOptions, NoRankerOptions
from sparkdl.settings.keys import check_key, given_values, set_key
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
from sparkdl.settings.tune import Tune

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
    "RankLayout",
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
    "Tune",
]

OF_A_SEARCH = "run_dir", "resume", "target"
"""Keys of ``train`` that cannot be searched: the search sets them, or they would end trials at different times."""


class Settings(Section):
    """A whole pipeline."""

    prepare: Prepare | None = None
    train: Train = Train()
    tune: Tune = Tune()
    extreme: Extreme = Extreme()
    compress: Compress = Compress()
    score: Score = Score()
    cluster: Cluster = Cluster()
    tracking: Tracking = Tracking()

    @model_validator(mode="before")
    @classmethod
    def _prepared_for_training(cls, values: Any) -> Any:
        """By default, ``train.dataset`` is ``prepare.output``, and the other way round."""
        match values:
            case {"prepare": dict() as prepare, "train": {"dataset": str() as dataset}} if "output" not in prepare:
                return {**values, "prepare": {**prepare, "output": dataset}}
        return values

    @model_validator(mode="after")
    def _searches_what_is_there(self) -> Self:
        for key in self.tune.space:
            section, _, name = key.partition(".")
            check_key(key, Settings)
            if section not in ("prepare", "train") and key != "cluster.num_ranks":
                raise ValueError(
                    f"tune.space: {key} cannot be searched; only keys of prepare and train, and cluster.num_ranks, can"
                )
            if key.startswith(("prepare.source", "prepare.output")):
                raise ValueError(
                    f"tune.space: {key} cannot be searched, because all trials use the same rows; remove it"
                )
            if section == "prepare" and self.prepare is None:
                raise ValueError(
                    f"tune.space: {key} is searched, but there is no section prepare; add it with its fixed keys"
                )
            if section == "train" and name in OF_A_SEARCH:
                raise ValueError(f"tune.space: {key} is set by the search itself; remove it")
        return self

    def with_values(self, values: Mapping[str, Any], *, place: str) -> "Settings":
        """The same settings with other values for these whole keys; a key above another one is applied first.

        Raises :class:`ConfigError`, which begins with ``place``, if the values do not fit together.
        """
        tree = given_values(self)
        for key in sorted(values, key=lambda key: key.count(".")):
            set_key(tree, key, given_values(values[key]), section=Settings, what=f"{key} of {place}")
        return Settings.checked(tree, place=place)

    def require(self, key: str) -> Any:
        """The value of a key that a job needs, for example ``prepare.source``.

        Raises :class:`ConfigError` if the file does not set it.
        """
        value: Any = self
        for part in key.split("."):
            value = getattr(value, part)
            if value is None:
                raise ConfigError(f"the configuration does not set {key!r}, which this job needs")
        return value
