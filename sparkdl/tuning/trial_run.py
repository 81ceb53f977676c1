"""Runs a trial: an ordinary training run with attempts and checkpoints, which the search records.

Runs on the driver, each trial in a thread of its own.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from sparkdl.collectives import Backend
from sparkdl.data import Dataset
from sparkdl.errors import DamagedCheckpointError
from sparkdl.settings import Settings
from sparkdl.settings.strategies import AsynchronousOptions
from sparkdl.settings.target import FigureName
from sparkdl.settings.tune import CHANGEABLE
from sparkdl.storage import join, remove
from sparkdl.training.attempts import run_attempts
from sparkdl.training.checkpoints.checkpoint import copy_checkpoint, load_manifest, save_weights
from sparkdl.training.checkpoints.checkpoint_folder import latest
from sparkdl.training.checkpoints.record import recipe_of
from sparkdl.training.checks.check import try_recipe
from sparkdl.training.job import Job
from sparkdl.training.starting_weights import starting_weights
from sparkdl.tuning.trial_datasets import TrialDatasets
from sparkdl.tuning.trial_records import TrialRecord

__all__ = ["TrialRunner"]

COPIES = 5  # tries to copy a checkpoint before newer ones replace it


class _Tried(NamedTuple):
    """The result of trying a recipe on the driver."""

    backend: Backend
    parameters: int
    loss: Any
    best_by: FigureName | None
    """``loss`` and ``best_by`` are the task's defaults unless the settings name others."""
    plan: Any
    """How ranks share a replica of the network; None if each rank has a whole one."""


class TrialRunner:
    """Runs the trials of one search. Safe to use from several threads."""

    def __init__(self, datasets: TrialDatasets, *, spark: SparkSession, folder: str) -> None:
        self._datasets, self._spark, self._folder = datasets, spark, folder
        self._trying = threading.Lock()
        self._known: dict[Any, _Tried] = {}

    def settings_of(self, record: TrialRecord) -> Settings:
        """All settings of a trial. Raises :class:`ConfigError` if its values do not fit together."""
        return self._datasets.settings_with(record.values, place=f"trial {record.number}")

    def folder_of(self, record: TrialRecord) -> str:
        """The folder of a trial's current checkpoints."""
        return self._folder_of(record.number, len(record.lineage))

    def discard(self, record: TrialRecord) -> None:
        """Remove all checkpoints of a trial, also those from before it took over another's.

        Errors of storage are ignored, because checkpoints that stay do no harm.
        """
        for took_over in range(len(record.lineage) + 1):
            with suppress(OSError):
                remove(self._folder_of(record.number, took_over))

    def _folder_of(self, number: int, took_over: int) -> str:
        """The folder of a trial's checkpoints since it took over another trial's for the ``took_over``-th time."""
        return join(self._folder, "trials", f"{number:05d}" + (f"-{took_over}" if took_over else ""))

    def run(
        self,
        record: TrialRecord,
        *,
        stop: threading.Event,
        on_epoch: Callable[[list[dict[str, float]]], None],
    ) -> None:
        """Train up to ``record.until`` epochs, from the trial's last checkpoint or from one that it takes over.

        ``on_epoch`` is called with the figures of all epochs so far: when an epoch has ended, and when the trial
        resumes from a checkpoint. Raises :class:`~sparkdl.training.attempts.RunStopped` if ``stop`` was set, and the
        errors of :func:`sparkdl.train`.
        """
        settings = self.settings_of(record)
        dataset = self._datasets.dataset_of(settings)
        tried = self._tried(dataset, settings)
        record.parameters = tried.parameters
        decided = {"loss": tried.loss, "best_by": tried.best_by}
        train = settings.train.model_copy(update=decided)
        folder, start = self.folder_of(record), None
        history: list[dict[str, float]] = []
        checkpoint = latest(folder) or self._taken_over(record, folder)
        if settings.train.start_from and not checkpoint:
            start = join(folder, "start.pt")
            weights = starting_weights(settings.train.start_from, dataset, train, settings.tracking)
            save_weights(start, weights)

        def receive(rank: int, message: dict[str, Any]) -> None:
            match message:
                case {"kind": "epoch", "epoch": epoch, "figures": figures}:
                    history[int(epoch) :] = [figures]
                    on_epoch(list(history))

        def resume(path: str) -> None:
            history[:] = load_manifest(path).history
            on_epoch(list(history))

        job = Job(
            dataset,
            train,
            folder,
            tried.backend,
            settings.cluster.replicas,
            start,
            plan=tried.plan,
            until=record.until,
        )
        options: dict[str, Any] = {"on_message": receive, "on_checkpoint": resume, "checkpoint": checkpoint}
        options["description"] = f"trial {record.number}"
        if isinstance(settings.train.strategy, AsynchronousOptions):
            from sparkdl.training.asynchronous.driver import train_asynchronously  # it loads Arrow Flight

            outcome = train_asynchronously(job, settings.cluster, self._spark, **options)
        else:
            outcome = run_attempts(job, settings.cluster, self._spark, stop=stop, **options)
        on_epoch(outcome.history)

    def _tried(self, dataset: Dataset, settings: Settings) -> _Tried:
        """Try a recipe on two rows, once for all trials that differ only in settings such as the learning rate.

        Raises the errors of :func:`sparkdl.train`.
        """
        recipe = {name: text for name, text in recipe_of(settings.train).items() if name not in CHANGEABLE}
        cluster = settings.cluster
        key = dataset.digest, cluster.backend, str(cluster.layout), cluster.ranks.max, *recipe.items()
        with self._trying:  # building a network uses the process's global random numbers
            if key not in self._known:
                tried = try_recipe(dataset, settings.train, cluster, export=False)
                parameters = sum(weight.numel() for weight in tried.model.parameters() if weight.requires_grad)
                decided = tried.settings.loss, tried.settings.best_by
                self._known[key] = _Tried(tried.backend, parameters, *decided, tried.plan)
            return self._known[key]

    def _taken_over(self, record: TrialRecord, folder: str) -> str | None:
        """Copy the checkpoint that a trial takes over, and return the copy's path; None if it takes over none.

        It is copied because the other trial may continue and remove it.
        """
        if not record.lineage:
            return None
        origin = record.lineage[-1]
        source = self._folder_of(origin["trial"], origin["took_over"])
        for _ in range(COPIES):
            with suppress(DamagedCheckpointError):
                if path := latest(source):
                    return copy_checkpoint(path, folder)
        raise DamagedCheckpointError(f"trial {record.number} cannot go on: there is no whole checkpoint in {source}")
