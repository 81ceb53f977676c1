"""Plans for trials: which of them continue, and for how many epochs. Runs on the driver."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from statistics import median
from typing import NamedTuple

from typing_extensions import override

from sparkdl.errors import ConfigError
from sparkdl.settings import Settings
from sparkdl.settings.tune import HyperbandOptions, MedianOptions, SuccessiveHalvingOptions, is_minimised
from sparkdl.tuning.trial_records import TrialRecord

__all__ = ["Halving", "MedianRule", "TrialPlan", "Turn", "WholeTrials", "create_plan"]


class Turn(NamedTuple):
    """A trial that may continue."""

    record: TrialRecord
    until: int
    """The number of epochs that the trial has at the end of the turn."""
    source: TrialRecord | None = None
    """The trial whose checkpoint is taken over; None if the trial continues from its own."""


class TrialPlan(ABC):
    """Decides how many epochs trials have in a turn. All methods get the current records."""

    @abstractmethod
    def begin(self, record: TrialRecord) -> None:
        """Set the epochs of a new trial's first turn."""

    @abstractmethod
    def is_whole(self, record: TrialRecord) -> bool:
        """Whether a trial has had all its epochs, so that it is finished after this turn."""

    def promote(self, records: Sequence[TrialRecord]) -> Turn | None:
        """The paused trial that continues before new ones begin, if any."""
        return None

    def take_over(self, record: TrialRecord, source: TrialRecord) -> None:
        """Change the record of a trial that takes over the checkpoint of ``source``."""
        record.history = list(source.history)

    def ends_early(self, record: TrialRecord, records: Sequence[TrialRecord]) -> bool:
        """Whether a running trial that has just finished an epoch is to be stopped."""
        return False


class WholeTrials(TrialPlan):
    """Every trial has all its epochs (``train.epochs``) in one turn."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @override
    def begin(self, record: TrialRecord) -> None:
        record.until = int(record.values.get("train.epochs", self._settings.train.epochs))

    @override
    def is_whole(self, record: TrialRecord) -> bool:
        return True


class MedianRule(WholeTrials):
    """Stops a trial whose best figure is worse than the median of other trials at that epoch (Golovin et al., 2017).

    The median is over all trials with at least as many epochs, and of their best figures up to that epoch.
    """

    def __init__(self, settings: Settings, options: MedianOptions, figure: str) -> None:
        super().__init__(settings)
        self._options, self._figure = options, figure

    @override
    def ends_early(self, record: TrialRecord, records: Sequence[TrialRecord]) -> bool:
        epochs = record.epochs
        others = [each for each in records if each is not record and each.epochs >= epochs]
        if epochs < self._options.min_epochs or len(others) < self._options.trials:
            return False
        known = [merit for each in others if (merit := _merit(each, self._figure, epochs)) > -math.inf]
        return bool(known) and _merit(record, self._figure, epochs) < median(known)


class Halving(TrialPlan):
    """Asynchronous successive halving, in one bracket or several (Li et al., 2020, algorithm 2).

    A rung is a number of epochs, at which trials pause. Of the trials that have reached a rung, the best
    1/``reduction`` may continue to the next one; higher rungs are served first. With several brackets, each bracket
    begins at a higher rung than the one before and gets fewer trials, so that all spend about equally many epochs
    (Li et al., 2018, section 3).
    """

    def __init__(self, epochs: int, *, first: int, reduction: int, brackets: int, figure: str) -> None:
        self._epochs, self._first, self._reduction, self._figure = epochs, first, reduction, figure
        rungs = max(1, math.floor(math.log(epochs / first, reduction) + 1e-9) + 1)
        starts = [first * reduction**bracket for bracket in range(min(brackets, rungs))]
        self._deals = list(_dealt(starts, reduction))

    @override
    def begin(self, record: TrialRecord) -> None:
        """Choose the bracket from the trial's number, and set the first turn."""
        record.first_rung = self._deals[record.number % len(self._deals)]
        record.until = min(record.first_rung, self._epochs)

    @override
    def promote(self, records: Sequence[TrialRecord]) -> Turn | None:
        brackets = sorted({record.first_rung for record in records}, reverse=True)
        found = [one for first in brackets if (one := self._promoted([r for r in records if r.first_rung == first]))]
        if not found:
            return None
        chosen = max(found, key=lambda record: record.epochs)
        return Turn(chosen, min(chosen.until * self._reduction, self._epochs))

    @override
    def is_whole(self, record: TrialRecord) -> bool:
        return record.epochs >= self._epochs or record.epochs < record.until  # train.patience has ended it

    def _promoted(self, records: Sequence[TrialRecord]) -> TrialRecord | None:
        """The trial of a bracket that may continue from the highest rung, if any."""
        for rung in sorted({record.until for record in records}, reverse=True):
            come = [record for record in records if record.epochs >= rung]
            come.sort(key=lambda record: (-_merit(record, self._figure, rung), record.number))
            for record in come[: len(come) // self._reduction]:
                if record.state == "paused" and record.until == rung:
                    return record
        return None


def create_plan(settings: Settings, figure: str) -> TrialPlan:
    """The plan of ``tune.stopping``. Raises :class:`ConfigError` if trials have too few epochs for it."""
    options, epochs = settings.tune.stopping, settings.train.epochs
    if isinstance(options, MedianOptions):
        return MedianRule(settings, options, figure)
    if isinstance(options, SuccessiveHalvingOptions | HyperbandOptions):
        if options.min_epochs >= epochs:
            raise ConfigError(
                f"tune.stopping.min_epochs is {options.min_epochs}, and train.epochs {epochs}: no trial would pause;"
                " raise train.epochs, or leave tune.stopping out"
            )
        return Halving(
            epochs,
            first=options.min_epochs,
            reduction=options.reduction,
            brackets=epochs if isinstance(options, HyperbandOptions) else 1,
            figure=figure,
        )
    return WholeTrials(settings)


def _dealt(starts: Sequence[int], reduction: int) -> Iterator[int]:
    """The first rungs of successive trials: brackets that begin later get fewer trials, which are spread evenly."""
    places = []
    for number, start in enumerate(starts):
        later = len(starts) - number
        share = math.ceil(len(starts) * reduction ** (later - 1) / later)
        places += [((place + 0.5) / share, start) for place in range(share)]
    for _, start in sorted(places):
        yield start


def _merit(record: TrialRecord, figure: str, epochs: int) -> float:
    """The best figure within the first ``epochs`` epochs; minimised figures are negated, so that larger is better."""
    epoch = record.best_epoch(figure, within=epochs)
    if epoch is None:
        return -math.inf
    value = record.history[epoch][figure]
    return -value if is_minimised(figure) else value
