"""The datasets of trials: a single one, or one for each combination of ``prepare`` settings. Runs on the driver."""

import hashlib
import random
import threading
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.data import Dataset, prepare
from sparkdl.errors import ConfigError
from sparkdl.settings import Settings
from sparkdl.storage import join
from sparkdl.tuning.space import Space

__all__ = ["TrialDatasets", "fitting_values"]

COMBINATIONS = 32  # tried with each value of the space; the value has to fit to the others in one of them


class TrialDatasets:
    """The settings and the dataset of each trial. Safe to use from several threads."""

    def __init__(self, settings: Settings, spark: SparkSession, dataset: Dataset | str | None) -> None:
        """``dataset`` is the dataset of all trials, unless keys of ``prepare`` are searched.

        Raises :class:`ConfigError` if no dataset is given, and :class:`~sparkdl.errors.DatasetError` if it cannot be
        opened.
        """
        self._settings, self._spark = settings, spark
        self._prepares = any(key.startswith("prepare.") for key in settings.tune.space)
        self._prepared: dict[str, Dataset] = {}
        self._lock = threading.Lock()
        if not self._prepares:
            found = dataset or settings.train.dataset or settings.require("prepare.output")
            self._only = found if isinstance(found, Dataset) else Dataset.open(found)

    def settings_with(self, values: Mapping[str, Any], *, place: str) -> Settings:
        """All settings, with these values of the space. Raises :class:`ConfigError` if they do not fit together."""
        settings = self._settings.with_values(values, place=place)
        if self._prepares and settings.prepare:
            text = settings.prepare.model_copy(update={"output": "-"}).model_dump_json()
            name = hashlib.sha256(text.encode()).hexdigest()[:12]
            output = join(settings.train.run_dir, "datasets", f"tuned-{name}")
            settings = settings.with_values({"prepare.output": output}, place=place)
        return settings

    def dataset_of(self, settings: Settings) -> Dataset:
        """The dataset of a trial. It is prepared once for all trials with the same ``prepare`` settings."""
        if not self._prepares:
            return self._only
        wanted = settings.require("prepare")
        with self._lock:  # one preparation takes all free slots, so that a second one has to wait
            if wanted.output not in self._prepared:
                self._prepared[wanted.output] = prepare(None, wanted, spark=self._spark)
            return self._prepared[wanted.output]


def fitting_values(settings: Settings) -> dict[str, Any]:
    """Values of the space that fit together.

    Raises :class:`ConfigError` for a value of a list, or an end of a range, that fits to no tried values of other keys.
    """
    corners, draws = Space(settings.tune.space).corners(), random.Random(0)
    first: dict[str, Any] = {}
    for key, values in corners.items():
        for value in values:
            problem = None
            for number in range(COMBINATIONS):
                others = {name: draws.choice(each) if number else each[0] for name, each in corners.items()}
                try:
                    settings.with_values(others | {key: value}, place="tune.space")
                except ConfigError as error:
                    problem = problem or error
                else:
                    first = first or others | {key: value}
                    break
            else:
                raise problem or ConfigError(f"tune.space: {key} has no value that can be")
    return first
