"""The section ``tune``: which settings are tried, how they are chosen, and what is known to be worth going on with."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from sparkdl.settings.kinds import OneKind
from sparkdl.settings.section import Positive, Section, Seed
from sparkdl.settings.train import SMALLER_IS_BETTER, FigureName

__all__ = [
    "CHANGEABLE",
    "OF_RUNS",
    "HyperbandOptions",
    "MedianOptions",
    "Population",
    "Searched",
    "SearchedRange",
    "SuccessiveHalvingOptions",
    "Tune",
    "is_minimised",
]

CHANGEABLE = ("learning_rate", "weight_decay", "label_smoothing", "clip_norm", "batch_size", "accumulation")
"""Keys of ``train`` with other values of which a checkpoint goes on; so it does with other ``optimizer_options``."""
OF_RUNS = ("seconds", "rows_per_second", "parameters")
"""What every run has beside the figures of its task."""
SOME_VALUES = 1000
"""A grid has no axis that is longer."""
TrialFigure = Annotated[
    str, Field(pattern=rf"^((train|validation)_({'|'.join(get_args(FigureName))})|{'|'.join(OF_RUNS)})$")
]


def is_minimised(figure: str) -> bool:
    """Whether a figure of a trial is better when smaller."""
    return figure in ("seconds", "parameters") or figure.partition("_")[2] in SMALLER_IS_BETTER


class SearchedRange(Section):
    """Numbers between two ends, both of which may be chosen."""

    model_config = ConfigDict(allow_inf_nan=False)

    linear: tuple[float, float] | None = None
    """Any number, each as likely as another: ``{linear: [0, 0.5]}``."""
    log: tuple[float, float] | None = None
    """Any number above zero, each order of magnitude as likely as another: ``{log: [1e-4, 1e-1]}``."""
    whole: tuple[int, int] | None = None
    """Whole numbers: ``{whole: [1, 8]}``."""
    log_whole: tuple[int, int] | None = None
    """Whole numbers above zero, by orders of magnitude: ``{log_whole: [16, 1024]}``."""
    step: Annotated[float, Field(gt=0)] | None = None
    """Of ``linear`` and ``whole``: only the first end and what is so many steps above it."""

    @property
    def kind(self) -> str:
        """Which of the keys says what the ends are."""
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
        """Whether orders of magnitude are as likely as each other."""
        return self.kind in ("log", "log_whole")

    def values(self) -> Iterator[float]:
        """All of them, where there are not infinitely many."""
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
            raise ValueError(f"orders of magnitude begin above zero, and this range at {low:g}; set `linear`")
        if self.step is not None and (self.is_log or (self.is_whole and self.step != int(self.step))):
            raise ValueError("`step` is for `linear`, and as a whole number for `whole`")
        return self


def _choices(values: Any) -> Any:
    if isinstance(values, list) and not values:
        raise ValueError("the list is empty: there is nothing to choose from")
    return values


Searched = Annotated[list[Any] | SearchedRange, BeforeValidator(_choices)]


class MedianOptions(Section):
    """Stop a trial whose best figure so far is worse than the median of what others had at the same epoch.

    The rule of Google's Vizier (Golovin et al., 2017, section 3.2.2).
    """

    kind: Literal["median"] = "median"
    trials: Positive = 5
    """How many other trials must have reached the epoch."""
    min_epochs: Positive = 1
    """The epochs that every trial may have."""


class SuccessiveHalvingOptions(Section):
    """Trials pause after ``min_epochs``, and the best of them go on: ASHA (Li et al., 2020, arXiv 1810.05934).

    Of those that have come as far, the best one in ``reduction`` goes on from its checkpoint to ``reduction`` times as
    many epochs, and so on up to ``train.epochs``. Nobody waits for the others.
    """

    kind: Literal["asha"] = "asha"
    min_epochs: Positive = 1
    """The epochs that every trial has."""
    reduction: Annotated[int, Field(ge=2)] = 3
    """One in so many goes on."""


class HyperbandOptions(Section):
    """ASHA with several numbers of epochs to begin with: asynchronous Hyperband (Li et al., 2018, arXiv 1603.06560).

    Where a few epochs do not tell good settings from bad ones, the trials that begin with more do.
    """

    kind: Literal["hyperband"] = "hyperband"
    min_epochs: Positive = 1
    """The fewest epochs that a trial has."""
    reduction: Annotated[int, Field(ge=2)] = 3
    """One in so many goes on."""


Stopping = OneKind[MedianOptions | SuccessiveHalvingOptions | HyperbandOptions]


class Population(Section):
    """Population based training (Jaderberg et al., 2017, arXiv 1711.09846).

    Every ``every`` epochs a trial that is among the worst takes over the checkpoint of one of the best (exploit), and
    with it changed settings (explore).
    """

    size: Annotated[int, Field(ge=2)] = 8
    """The number of trials; ``tune.sampler`` chooses their first settings."""
    every: Positive = 1
    """Epochs between two comparisons of the trials."""
    share: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    """The share of the trials that are replaced as the worst, and that are copied as the best."""
    factor: Annotated[float, Field(gt=1)] = 1.2
    """A number is multiplied or divided by it; of a list, the neighbour is taken."""
    resample: Annotated[float, Field(ge=0, le=1)] = 0.25
    """How often a setting is drawn anew from its range instead."""


def _several(figures: Any) -> Any:
    return [figures] if isinstance(figures, str) else figures


class Tune(Section):
    """A search over settings. Each trial is a run of ``train`` with ``cluster.num_ranks`` ranks."""

    space: dict[str, Searched] = {}
    """What is tried, by the keys of this file: a list of values, or a range of numbers (``linear``, ``log``, ``whole``,
    ``log_whole``), for example ``{train.learning_rate: {log: [1e-4, 1e-1]}, train.strategy: [allreduce, local_sgd],
    train.model_options.hidden: [[128], [256, 128]]}``."""
    sampler: Literal["tpe", "random", "grid", "cmaes", "gp"] = "tpe"
    """How Optuna chooses: by a tree-structured Parzen estimator, at random, all combinations of the lists, by CMA-ES,
    or by a Gaussian process."""
    trials: Positive | None = None
    """How many; by default 20, of a ``grid`` all, and of a ``population`` its size."""
    seconds: Annotated[float, Field(gt=0)] | None = None
    """After so many seconds no other trial begins; those that run go on to their end. The time of drivers that were
    killed or interrupted counts, that between them does not."""
    at_a_time: Positive | None = None
    """How many may run at a time; by default as many as there are slots for."""
    figures: Annotated[list[TrialFigure], BeforeValidator(_several)] = []
    """The objectives: a figure of an epoch (``validation_accuracy``), the trial's ``seconds`` of training, its
    ``rows_per_second``, or the ``parameters`` of its network. Losses, errors, seconds and parameters are better when
    smaller. With several figures, the result is the Pareto front: trials to which no other is superior in all of them.
    By default the validation figure of ``train.best_by``."""
    stopping: Stopping | None = None
    """Which trials end before ``train.epochs``: ``asha``, ``hyperband`` or ``median``."""
    population: Population | None = None
    """Change settings while trials are trained, instead of choosing them once: ``{size: 8}``."""
    refit: Literal["none", "train", "all"] = "train"
    """What is done with the best settings: ``none``: nothing. ``train``: a last run goes on from the best trial's
    checkpoint, and is registered through ``tracking.gate``. ``all``: a last run is trained from
    the beginning, on the rows for validation, too."""
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
                raise ValueError(f"sampler grid tries all values, and space.{key} has too many; write them as a list")
            if (high - low) / (searched.step or 1) > SOME_VALUES:
                raise ValueError(f"sampler grid tries all values, and space.{key} has too many; give it a `step`")
        return self

    @model_validator(mode="after")
    def _figures_fit(self) -> Self:
        if len(set(self.figures)) < len(self.figures):
            raise ValueError("figures names one twice")
        if len(self.figures) < 2:
            return self
        for key, given in {"stopping": self.stopping, "population": self.population}.items():
            if given:
                raise ValueError(f"{key} compares trials by one figure, and figures has {len(self.figures)}")
        if self.sampler == "cmaes":
            raise ValueError("sampler cmaes optimises a single figure; set it to tpe, random, grid or gp")
        return self

    @model_validator(mode="after")
    def _population_fits(self) -> Self:
        if self.population is None:
            return self
        if self.stopping:
            raise ValueError("population replaces the worst trials, and stopping ends them; leave one of them out")
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
            raise ValueError(f"{key} compares trials of as many epochs; take train.epochs out of space")
        if self.figures and self.figures[0] in OF_RUNS and (self.stopping or self.population):
            raise ValueError(
                f"figures: after some epochs, {self.figures[0]} does not say how good a trial will be; leave out"
                " stopping and population"
            )
        return self
