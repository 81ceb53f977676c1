"""Population based training: trials change their settings during training (Jaderberg et al., 2017, arXiv 1711.09846).

Runs on the driver.
"""

import random
from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from sparkdl.settings import Settings
from sparkdl.settings.tune import Population, is_minimised
from sparkdl.tuning.space import Space
from sparkdl.tuning.stopping import TrialPlan, Turn
from sparkdl.tuning.trial_records import TrialRecord

__all__ = ["PopulationPlan"]


class PopulationPlan(TrialPlan):
    """Trials take turns of ``every`` epochs; the trial with the fewest epochs goes first.

    Before its turn, a trial among the worst takes over the checkpoint of one of the best (exploit, by truncation) with
    slightly changed values (explore). Trials do not wait for each other; they are compared by their last epochs.
    """

    def __init__(self, settings: Settings, options: Population, figure: str) -> None:
        self._options, self._figure = options, figure
        self._epochs, self._seed = settings.train.epochs, settings.tune.seed
        self._space = Space(settings.tune.space)

    @override
    def begin(self, record: TrialRecord) -> None:
        record.until = min(self._options.every, self._epochs)

    @override
    def promote(self, records: Sequence[TrialRecord]) -> Turn | None:
        waiting = [record for record in records if record.state == "paused"]
        if len(records) < self._options.size or not waiting:
            return None
        record = min(waiting, key=lambda each: (each.epochs, each.number))
        source = self._better(record, records)
        if source is None:
            return Turn(record, min(record.epochs + self._options.every, self._epochs))
        return Turn(record, min(source.epochs + self._options.every, self._epochs), source)

    @override
    def take_over(self, record: TrialRecord, source: TrialRecord) -> None:
        options, seed = self._options, self._draw(record)
        record.values = self._space.explored(source.values, factor=options.factor, resample=options.resample, seed=seed)
        origin = {"epoch": source.epochs, "trial": source.number, "took_over": len(source.lineage)}
        record.lineage.append(origin | {"values": record.values})
        super().take_over(record, source)

    @override
    def is_whole(self, record: TrialRecord) -> bool:
        return record.epochs >= self._epochs or record.epochs < record.until

    def _better(self, record: TrialRecord, records: Sequence[TrialRecord]) -> TrialRecord | None:
        """One of the best trials if ``record`` is among the worst, otherwise None."""
        known = [each for each in records if each.state != "failed" and each.history]
        share = round(len(known) * self._options.share)
        if not share:
            return None
        known.sort(key=lambda each: (self._last(each), -each.number))
        worst, best = known[:share], [each for each in known[-share:] if each.epochs >= record.epochs]
        if not best or all(each is not record for each in worst) or self._last(best[0]) <= self._last(record):
            return None
        return random.Random(self._draw(record)).choice(best)

    def _last(self, record: TrialRecord) -> float:
        value = record.history[-1].get(self._figure, float("-inf"))
        return -value if is_minimised(self._figure) else value

    def _draw(self, record: TrialRecord) -> int:
        """The seed of a trial's turn, which is the same in every process."""
        keys = [self._seed % 2**32, record.number, record.until, len(record.lineage)]
        return int(np.random.SeedSequence(keys).generate_state(1)[0])
