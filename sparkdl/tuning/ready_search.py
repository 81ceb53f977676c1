"""Whether a search can begin: its space, figures, ranks and datasets. Runs on the driver."""

from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql import SparkSession

from sparkdl.cluster import get_session, wait_for_ranks
from sparkdl.data import Dataset
from sparkdl.errors import ConfigError
from sparkdl.settings import Settings
from sparkdl.settings.explain import nearest
from sparkdl.settings.strategies import AsynchronousOptions
from sparkdl.settings.tune import OF_RUNS
from sparkdl.tracking import check_gate
from sparkdl.training.task_to_train import task_to_train
from sparkdl.tuning.populations import PopulationPlan
from sparkdl.tuning.search_record import SearchRecord, find_search
from sparkdl.tuning.space import Space
from sparkdl.tuning.stopping import TrialPlan, create_plan
from sparkdl.tuning.study import TrialStudy
from sparkdl.tuning.trial_datasets import TrialDatasets, fitting_values

__all__ = ["ReadySearch", "plan_trials", "ready_search"]


@dataclass(frozen=True)
class ReadySearch:
    """All that a search needs to begin."""

    settings: Settings
    figures: tuple[str, ...]
    study: TrialStudy
    datasets: TrialDatasets
    resumed: SearchRecord | None
    spark: SparkSession


def ready_search(settings: Settings, dataset: Dataset | str | None, spark: SparkSession | None) -> ReadySearch:
    """Check all that can be checked before there is a search. Raises :class:`ConfigError`."""
    if not settings.tune.space:
        raise ConfigError("tune.space is empty: name the keys to search, each with a list of values or a range")
    prepares = [key for key in settings.tune.space if key.startswith("prepare.")]
    if prepares and (dataset is not None or settings.train.dataset is not None):
        raise ConfigError(
            f"tune.space: {prepares[0]} is searched, but train.dataset is already prepared; leave one of them out"
        )
    if settings.train.teacher:
        raise ConfigError("train.teacher computes logits for one dataset and run; leave it out of a search")
    values = fitting_values(settings)
    _check_synchronous(settings)
    spark = spark or get_session(settings.cluster)
    for ranks in Space(settings.tune.space).corners().get("cluster.num_ranks", [settings.cluster.num_ranks]):
        wait_for_ranks(spark, settings.cluster.model_copy(update={"num_ranks": ranks}))
    datasets = TrialDatasets(settings, spark, dataset)
    first = datasets.settings_with(values, place="tune.space")
    figures = _checked_figures(datasets.dataset_of(first), first)
    if settings.train.best_by is None and figures[0].startswith("validation_"):
        settings = settings.with_values({"train.best_by": figures[0].partition("_")[2]}, place="tune.figures")
        datasets = TrialDatasets(settings, spark, dataset)
    plan_trials(settings, figures[0])
    study = TrialStudy(settings.tune, figures)
    return ReadySearch(settings, figures, study, datasets, find_search(settings), spark)


def _check_synchronous(settings: Settings) -> None:
    """Raise :class:`ConfigError` if trials are to pause or stop early, but a strategy is asynchronous.

    Asynchronous workers do not end epochs at the same time.
    """
    key = "stopping" if settings.tune.stopping else "population"
    if not getattr(settings.tune, key):
        return
    tried = [settings]
    for strategy in Space(settings.tune.space).corners().get("train.strategy", []):
        with suppress(ConfigError):  # the strategy may fit to other values only
            tried.append(settings.with_values({"train.strategy": strategy}, place="tune.space"))
    for each in tried:
        if isinstance(each.train.strategy, AsynchronousOptions):
            raise ConfigError(
                f"tune.{key} ends or pauses trials after some epochs, but with train.strategy"
                f" {each.train.strategy.kind} workers end their epochs at different times; leave one of them out"
            )


def _checked_figures(dataset: Dataset, settings: Settings) -> tuple[str, ...]:
    """The figures that the search optimises. Raises :class:`ConfigError` for a figure that trials do not have."""
    task = task_to_train(dataset.card, settings.train)
    validated = "validation" in dataset.splits
    known = [*(f"train_{name}" for name in ("loss", *task.train_figures)), *OF_RUNS]
    known += [f"validation_{name}" for name in ("loss", *task.figure_names)] if validated else []
    learned = ("train", "validation") if settings.tune.refit == "all" else ("train",)
    held_out = [split for split in dataset.splits if split not in learned]
    measured = [f"{split}_{name}" for split in held_out for name in ("loss", *task.figure_names)]
    if settings.tune.refit != "none":
        check_gate(settings.tracking, measured)
    wanted = settings.tune.figures or [f"validation_{settings.train.best_by or task.best_by}"]
    for name in wanted:
        if name not in known:
            hint = "" if validated else "; for validation figures, prepare a validation split (prepare.split)"
            raise ConfigError(f"tune.figures: no trial has {name}, on {dataset.path}; {nearest(name, known)}{hint}")
    return tuple(wanted)


def plan_trials(settings: Settings, figure: str) -> TrialPlan:
    """The plan of the settings. Raises :class:`ConfigError` if trials have too few epochs for it."""
    if settings.tune.population:
        return PopulationPlan(settings, settings.tune.population, figure)
    return create_plan(settings, figure)
