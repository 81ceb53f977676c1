"""Searches a space of settings, trains with the best, and registers the model. Runs on the driver."""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cluster import exit_on_sigterm
from sparkdl.data import Dataset
from sparkdl.errors import CheckpointError, TrainingError
from sparkdl.settings import Settings
from sparkdl.settings.keys import given_values
from sparkdl.storage import join, write_file
from sparkdl.tracking import Run, below, check_store, start_run
from sparkdl.training.checkpoints.checkpoint_folder import latest
from sparkdl.training.checkpoints.owner import Owner
from sparkdl.training.train import TrainedModel, train_from
from sparkdl.tuning.pictures import draw_search
from sparkdl.tuning.ready_search import ReadySearch, plan_trials, ready_search
from sparkdl.tuning.search import Search
from sparkdl.tuning.search_record import SearchRecord
from sparkdl.tuning.search_table import SearchTable, described_values
from sparkdl.tuning.settings_text import settings_text
from sparkdl.tuning.study import best_records
from sparkdl.tuning.trial_records import TrialRecord, load_records
from sparkdl.tuning.trial_run import TrialRunner

__all__ = ["TunedModel", "check_tune", "tune"]

log = logging.getLogger(__name__)

KEPT_SECONDS = 5.0  # between two writes of the record with the search's seconds
WITHOUT_VALIDATION = {"patience": None, "target": None, "best_by": None}
"""Values of ``train`` that need no validation figures."""


@dataclass(frozen=True)
class TunedModel:
    """What :func:`tune` returns."""

    run_id: str
    """The search's run in MLflow; its trials are nested in it."""
    figures: tuple[str, ...]
    """The figures that the search optimised."""
    trials: tuple[TrialRecord, ...]
    best: tuple[TrialRecord, ...]
    """The best trial; with several figures, the trials that no other dominates."""
    settings: Settings
    """The settings of the best trial, or of the first one of several."""
    settings_file: str
    """The path of a YAML file with these settings, for ``sparkdl train``."""
    trained: TrainedModel | None
    """The final training run with the best settings; None without ``tune.refit``."""

    @property
    def states(self) -> str:
        """The number of trials in each state, as text."""
        return ", ".join(f"{count} {state}" for state, count in Counter(each.state for each in self.trials).items())

    def described(self, record: TrialRecord) -> str:
        """A trial's figures and values, as text."""
        outcome = record.outcome(self.figures) or ()
        figures = ", ".join(f"{name} {value:.4g}" for name, value in zip(self.figures, outcome, strict=True))
        return f"{figures}; {described_values(record.values)}"


def tune(settings: Settings, *, dataset: Dataset | str | None = None, spark: SparkSession | None = None) -> TunedModel:
    """Search for the settings with the best figures, and train with them. Runs on the driver.

    Trials are runs on the slots of the cluster, ``cluster.num_ranks`` wide, as many at a time as there are slots for.
    ``dataset`` is the dataset to train on, by default ``train.dataset`` or ``prepare.output``; if keys of ``prepare``
    are searched, one dataset is made for each combination of them. A trial that fails counts as failed.

    Before the first trial, raises :class:`ConfigError` for an invalid space, figure or number of ranks. When three
    trials have failed in the same way, raises the error of the third. Also raises what :func:`sparkdl.train` raises.
    """
    ready = ready_search(settings, dataset, spark)
    settings, resumed = ready.settings, ready.resumed
    params: dict[str, Any] = {name: getattr(settings, name).model_dump() for name in ("train", "cluster", "tracking")}
    params["tune"] = given_values(settings.tune)
    with (
        exit_on_sigterm(),
        Owner(join(settings.train.run_dir, resumed.run_id) if resumed else None) as owner,
        start_run(settings.tracking, params=params, resume=resumed.run_id if resumed else None) as run,
    ):
        folder = join(settings.train.run_dir, run.run_id)
        if not resumed:
            owner.claim(folder)
        record = resumed or SearchRecord.of(run.run_id, settings)
        record.save(folder)
        try:
            tuned = _search(ready, record, folder, owner, run)
        except BaseException:
            log.warning("the search %s can be continued: tune.resume=%s", run.run_id, run.run_id)
            raise
        record.finished = True
        record.save(folder)
    return tuned


def check_tune(
    settings: Settings, *, dataset: Dataset | str | None = None, spark: SparkSession | None = None
) -> dict[str, str]:
    """Check all that :func:`tune` needs without running trials, and describe the search. Runs on the driver."""
    ready = ready_search(settings, dataset, spark)
    options = ready.settings.tune
    return {
        "space": ", ".join(options.space),
        "figures": ", ".join(ready.figures),
        "trials": f"{options.budget}, by {options.sampler}",
        "search": f"continues {ready.resumed.run_id}" if ready.resumed else f"a new one in {settings.train.run_dir}",
        "tracking": check_store(settings.tracking),
    }


def _search(ready: ReadySearch, kept: SearchRecord, folder: str, owner: Owner, run: Run) -> TunedModel:
    settings, figures = ready.settings, ready.figures
    records = load_records(folder)
    runner = TrialRunner(ready.datasets, spark=ready.spark, folder=folder)

    def note(record: TrialRecord | None) -> None:
        owner.check()
        if record is not None:
            _log_trial(run, record, figures, search.records)
            table.over(record, search.records)
            if not settings.tune.population and record not in best_records(search.records, figures):
                runner.discard(record)
        if search.seconds - kept.seconds > KEPT_SECONDS:
            kept.seconds = search.seconds
            kept.save(folder)
        table.update(search.records, search.running)

    table = SearchTable(settings.tune, figures, settings.train.epochs, spent=kept.seconds)
    search = Search(
        settings,
        records,
        study=ready.study,
        plan=plan_trials(settings, figures[0]),
        runner=runner,
        spark=ready.spark,
        folder=folder,
        spent=kept.seconds,
        on_change=note,
    )
    for record in records:
        if record.is_over:  # an earlier driver may have been killed before it logged the trial
            _log_trial(run, record, figures, records)
    try:
        search.run()
    finally:
        kept.seconds = search.seconds
        with suppress(CheckpointError):  # must not hide the error that ended the search
            kept.save(folder)
        table.update(search.records, search.running, last=True)
        table.close()
    for name, picture in draw_search(ready.study.as_optuna(search.records), figures):
        run.log_figure(picture, f"{name}.png")
    return _with_the_best(ready, search.records, runner, folder, run)


def _with_the_best(
    ready: ReadySearch, records: Sequence[TrialRecord], runner: TrialRunner, folder: str, run: Run
) -> TunedModel:
    """Write the best settings to a file, and train with them as ``tune.refit`` says."""
    refit, best = ready.settings.tune.refit, best_records(records, ready.figures)
    if not best:
        raise TrainingError(f"none of {len(records)} trials has reached a {ready.figures[0]}; the log has the reasons")
    chosen = ready.datasets.settings_with(best[0].values, place="the best settings")
    text = settings_text(chosen)
    place = join(folder, "best.yaml")
    write_file(place, text.encode())
    run.log_text(text, "best.yaml")
    trained, dataset = None, ready.datasets.dataset_of(chosen)
    on_all = refit == "all" and "validation" in dataset.splits
    # The folder has no other runs, so that `auto` can only resume this run, after a driver was killed.
    last = {"run_dir": join(folder, "last"), "resume": "auto"}
    if refit != "none":
        with below(run.run_id if run.in_store else None):
            trained = train_from(
                None if on_all else latest(runner.folder_of(best[0])),
                dataset.joining("validation") if on_all else dataset,
                chosen.train.model_copy(update=last | (WITHOUT_VALIDATION if on_all else {})),
                cluster=chosen.cluster,
                tracking=chosen.tracking,
                spark=ready.spark,
            )
    for record in records:
        if record not in best:
            runner.discard(record)
    return TunedModel(run.run_id, ready.figures, tuple(records), tuple(best), chosen, place, trained)


def _log_trial(run: Run, record: TrialRecord, figures: Sequence[str], records: Sequence[TrialRecord]) -> None:
    """Log a trial that is over as a child of the search's run, and the best figures so far."""
    tags = {"sparkdl.trial": str(record.number), "sparkdl.trial_state": record.state}
    run.log_child(
        f"trial {record.number}",
        params=record.values,
        history=record.history,
        tags=tags
        | ({"sparkdl.reason": record.reason} if record.reason else {})
        | ({"sparkdl.lineage": json.dumps(record.lineage)} if record.lineage else {}),
        key=f"trial-{record.number}",
        status="FAILED" if record.state == "failed" else "FINISHED",
    )
    over = sum(each.is_over for each in records)
    if (best := best_records(records, figures)) and (outcome := best[0].outcome(figures)):
        run.log_metrics({f"best_{name}": value for name, value in zip(figures, outcome, strict=True)}, step=over)
