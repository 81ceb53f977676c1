"""The section ``tune``: which settings are tried, how they are chosen, and which trials are stopped early."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from sparkdl.settings.kinds import OneKind
from sparkdl.settings.section import Positive, Section, Seed
from sparkdl.settings.target import SMALLER_IS_BETTER, FigureName

__all__ = [
    "CHANGEABLE",
    "OF_RUNS",
    "HyperbandOptions",
    "MedianOptions",
    "Population",
    "SamplerName",
    "Searched",
    "SearchedRange",
    "SuccessiveHalvingOptions",
    "Tune",
    "is_minimised",
]

CHANGEABLE = ("learning_rate", "weight_decay", "label_smoothing", "clip_norm", "batch_size", "accumulation")
"""Keys of ``train`` that may change when a run continues from a checkpoint, besides ``optimizer_options``."""
OF_RUNS = ("seconds", "rows_per_second", "parameters")
"""Figures of every run, besides those of its task."""
SOME_VALUES = 1000
"""The most values on an axis of a grid."""
SamplerName = Literal["tpe", "random", "grid", "cmaes", "gp"]
TrialFigure = Annotated[
    str, Field(pattern=rf"^((train|validation)_({'|'.join(get_args(FigureName))})|{'|'.join(OF_RUNS)})$")
]


def is_minimised(figure: str) -> bool:
    """Whether a figure of a trial is better when smaller."""
    return figure in ("seconds", "parameters") or figure.partition("_")[2] in SMALLER_IS_BETTER


class SearchedRange(Section):
    """Numbers between two ends, which may be chosen, too."""

    model_config = ConfigDict(allow_inf_nan=False)

    linear: tuple[float, float] | None = None
    """Any number, uniformly distributed: ``{linear: [0, 0.5]}``."""
    log: tuple[float, float] | None = None
    """Any number above zero, with a uniformly distributed logarithm: ``{log: [1e-4, 1e-1]}``."""
    whole: tuple[int, int] | None = None
    """Whole numbers: ``{whole: [1, 8]}``."""
    log_whole: tuple[int, int] | None = None
    """Whole numbers above zero, with a uniformly distributed logarithm: ``{log_whole: [16, 1024]}``."""
    step: Annotated[float, Field(gt=0)] | None = None
    """For ``linear`` and ``whole``: only the first end and numbers that are a multiple of this above it."""

    @property
    def kind(self) -> str:
        """Which of the keys gives the ends."""
        return next(name for name in ("linear", "log", "whole", "log_whole") if getattr(self, name) is not None)

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest number."""
        low, high = getattr(self, self.kind)
        return low, high

    @property
    def is_whole(self) -> bool:
        """Whether numbers are whole."""
        return self.kind in ("whole", "log_whole")

    @property
    def is_log(self) -> bool:
        """Whether the logarithm is uniformly distributed."""
        return self.kind in ("log", "log_whole")

    def values(self) -> Iterator[float]:
        """All numbers of the range, if they are finitely many."""
        step = self.step or 1
        number, (low, high) = 0, self.ends
        while (value := low + number * step) <= high + 1e-9 * step:
            yield int(value) if self.is_whole else round(value, 12)  # 0.3, and not 0.1 three times
            number += 1

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [name for name in ("linear", "log", "whole", "log_whole") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("give one of `linear`, `log`, `whole` and `log_whole`, each of which has two ends")
        low, high = self.ends
        if low > high:
            raise ValueError(f"the range is empty: it begins at {low:g} and ends at {high:g}")
        if self.is_log and low <= 0:
            raise ValueError(f"a logarithmic range must begin above zero, but this one begins at {low:g}; use `linear`")
        if self.step is not None and (self.is_log or (self.is_whole and self.step != int(self.step))):
            raise ValueError("`step` is for `linear`, and as a whole number for `whole`")
        return self


def _choices(values: Any) -> Any:
    if isinstance(values, list) and not values:
        raise ValueError("the list is empty: there is nothing to choose from")
    return values


Searched = Annotated[list[Any] | SearchedRange, BeforeValidator(_choices)]


class MedianOptions(Section):
    """Stop a trial whose best figure so far is worse than the median of other trials at the same epoch.

    The rule of Google's Vizier (Golovin et al., 2017, section 3.2.2).
    """

    kind: Literal["median"] = "median"
    trials: Positive = 5
    """How many other trials must have reached the epoch."""
    min_epochs: Positive = 1
    """Epochs before a trial can be stopped."""


class SuccessiveHalvingOptions(Section):
    """Trials pause after ``min_epochs``, and the best of them go on: ASHA (Li et al., 2020, arXiv 1810.05934).

    Of all trials that have reached this epoch, the best 1/``reduction`` go on from their checkpoints to ``reduction``
    times as many epochs, and so on up to ``train.epochs``. Trials do not wait for each other.
    """

    kind: Literal["asha"] = "asha"
    min_epochs: Positive = 1
    """Epochs that every trial trains."""
    reduction: Annotated[int, Field(ge=2)] = 3
    """One in so many goes on."""


class HyperbandOptions(Section):
    """ASHA with several values of ``min_epochs``: asynchronous Hyperband (Li et al., 2018, arXiv 1603.06560).

    If a few epochs do not tell good settings from bad ones, the trials that begin with more epochs do.
    """

    kind: Literal["hyperband"] = "hyperband"
    min_epochs: Positive = 1
    """The smallest number of epochs that a trial trains."""
    reduction: Annotated[int, Field(ge=2)] = 3
    """One in so many goes on."""


Stopping = OneKind[MedianOptions | SuccessiveHalvingOptions | HyperbandOptions]


class Population(Section):
    """Population based training (Jaderberg et al., 2017, arXiv 1711.09846).

    Every ``every`` epochs, each of the worst trials takes over the checkpoint of one of the best (exploit), and goes on
    with changed settings (explore).
    """

    size: Annotated[int, Field(ge=2)] = 8
    """The number of trials; ``tune.sampler`` chooses their first settings."""
    every: Positive = 1
    """Epochs between two comparisons of the trials."""
    share: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    """The fraction of trials that counts as the worst and is replaced, and the fraction that counts as the best."""
    factor: Annotated[float, Field(gt=1)] = 1.2
    """A number is multiplied or divided by this factor; in a list, a neighbouring value is taken."""
    resample: Annotated[float, Field(ge=0, le=1)] = 0.25
    """The probability that a setting is instead drawn anew from its range."""


def _several(figures: Any) -> Any:
    return [figures] if isinstance(figures, str) else figures


class Tune(Section):
    """A search over settings. Each trial is a run of ``train`` with ``cluster.num_ranks`` ranks."""

    space: dict[str, Searched] = {}
    """The settings to search, by the keys of this file: a list of values, or a range of numbers (``linear``, ``log``,
    ``whole``, ``log_whole``), for example ``{train.learning_rate: {log: [1e-4, 1e-1]}, train.strategy: [allreduce,
    local_sgd], train.model_options.hidden: [[128], [256, 128]]}``."""
    sampler: SamplerName = "tpe"
    """How Optuna chooses settings: with a tree-structured Parzen estimator, at random, as all combinations of the
    lists, with CMA-ES, or with a Gaussian process."""
    trials: Positive | None = None
    """The number of trials; by default 20, for a ``grid`` all combinations, and for a ``population`` its size."""
    seconds: Annotated[float, Field(gt=0)] | None = None
    """After this number of seconds no new trial begins; running trials go on to their end. If a search is continued,
    the time of earlier drivers counts, but not the time between them."""
    at_a_time: Positive | None = None
    """How many trials may run at a time; by default as many as fit into the slots."""
    figures: Annotated[list[TrialFigure], BeforeValidator(_several)] = []
    """The objectives: a figure of an epoch (``validation_accuracy``), the trial's ``seconds`` of training, its
    ``rows_per_second``, or the ``parameters`` of its network. Losses, errors, seconds and parameters are better when
    smaller. With several figures, the result is the Pareto front: trials to which no other trial is superior in all
    figures. By default the validation figure of ``train.best_by``."""
    stopping: Stopping | None = None
    """Which trials end before ``train.epochs``: ``asha``, ``hyperband`` or ``median``."""
    population: Population | None = None
    """Change settings while trials are trained, instead of choosing them once: ``{size: 8}``."""
    refit: Literal["none", "train", "all"] = "train"
    """What to do with the best settings. ``none``: nothing. ``train``: a last run continues from the best trial's
    checkpoint, and is registered through ``tracking.gate``. ``all``: a last run trains from the beginning, also on the
    validation rows."""
    seed: Seed = 0
    """The seed of the sampler. If trials run one at a time, the same seed gives the same search."""
    resume: str | None = None
    """Go on with a search whose driver has ended: the id of its run in MLflow, or ``auto`` for the newest unfinished
    one with the same settings."""

    @property
    def budget(self) -> int:
        """The number of trials."""
        if self.population:
            return self.population.size
        if self.trials is not None:
            return self.trials
        return self.grid_size if self.sampler == "grid" else 20

    @property
    def grid_size(self) -> int:
        """How many combinations the lists have."""
        size = 1
        for searched in self.space.values():
            size *= len(list(searched.values())) if isinstance(searched, SearchedRange) else len(searched)
        return size

    @model_validator(mode="after")
    def _grid_is_finite(self) -> Self:
        for key, searched in self.space.items() if self.sampler == "grid" else ():
            if not isinstance(searched, SearchedRange):
                continue
            low, high = searched.ends
            if searched.is_log or (searched.step is None and not searched.is_whole):
                raise ValueError(f"sampler grid tries all values, but space.{key} has too many; write them as a list")
            if (high - low) / (searched.step or 1) > SOME_VALUES:
                raise ValueError(f"sampler grid tries all values, but space.{key} has too many; set `step`")
        return self

    @model_validator(mode="after")
    def _figures_fit(self) -> Self:
        if len(set(self.figures)) < len(self.figures):
            raise ValueError("figures names one twice")
        if len(self.figures) < 2:
            return self
        for key, given in {"stopping": self.stopping, "population": self.population}.items():
            if given:
                raise ValueError(f"{key} compares trials by one figure, but figures has {len(self.figures)}")
        if self.sampler == "cmaes":
            raise ValueError("sampler cmaes optimises a single figure; set it to tpe, random, grid or gp")
        return self

    @model_validator(mode="after")
    def _population_fits(self) -> Self:
        if self.population is None:
            return self
        if self.stopping:
            raise ValueError("population replaces the worst trials, but stopping ends them; leave one of them out")
        if self.trials not in (None, self.population.size):
            raise ValueError("with a population, the number of trials is population.size; leave trials out")
        for key in self.space:
            if key not in [f"train.{name}" for name in CHANGEABLE] and not key.startswith("train.optimizer_options."):
                raise ValueError(
                    f"population changes settings at a checkpoint, where {key} cannot change; it can change"
                    f" train.{', '.join(CHANGEABLE)} and keys below train.optimizer_options"
                )
        return self

    @model_validator(mode="after")
    def _stopping_by_epochs(self) -> Self:
        if (self.stopping or self.population) and "train.epochs" in self.space:
            key = "stopping" if self.stopping else "population"
            raise ValueError(f"{key} compares trials with the same number of epochs; remove train.epochs from space")
        if self.figures and self.figures[0] in OF_RUNS and (self.stopping or self.population):
            raise ValueError(
                f"figures: after some epochs, {self.figures[0]} does not show how good a trial will be; leave out"
                " stopping and population"
            )
        return self
