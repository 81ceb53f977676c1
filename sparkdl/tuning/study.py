"""Chooses the values of the next trial with Optuna's samplers. Runs on the driver.

For each trial, the study is created anew from the records, and the sampler with a seed that depends on the trial's
number. So the values depend only on the records, and not on the process that made them.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sparkdl.extras import require
from sparkdl.settings import Tune
from sparkdl.settings.tune import is_minimised
from sparkdl.tuning.samplers import SAMPLERS
from sparkdl.tuning.space import Space
from sparkdl.tuning.trial_records import TrialRecord

if TYPE_CHECKING:
    import optuna

__all__ = ["TrialStudy", "best_records"]


class TrialStudy:
    """A search as a study of Optuna."""

    def __init__(self, settings: Tune, figures: Sequence[str]) -> None:
        """Raises :class:`~sparkdl.errors.ConfigError` if the extra ``tune`` is not installed."""
        self._optuna: Any = require("optuna", extra="tune")
        self._settings, self._figures = settings, figures
        self.space = Space(settings.space)
        self._distributions = self.space.distributions()
        self._attributes: dict[int, dict[str, Any]] = {}
        """Attributes that samplers set on trials, by number. They are not saved: that of CMA-ES is a pickle."""
        logging.getLogger("optuna").setLevel(logging.ERROR)

    def ask(self, records: Sequence[TrialRecord], number: int) -> dict[str, Any]:
        """The values of the next trial, by key."""
        if self._settings.sampler == "grid":
            return self.space.combination(number)
        study = self.as_optuna(records, self._sampler(records, number))
        trial = study.ask(self._distributions)
        self._attributes[number] = dict(study.get_trials(deepcopy=False)[-1].system_attrs)
        return self.space.values(trial.params)

    def as_optuna(
        self, records: Sequence[TrialRecord], sampler: "optuna.samplers.BaseSampler | None" = None
    ) -> "optuna.Study":
        """The records as a study of Optuna."""
        directions = ["minimize" if is_minimised(name) else "maximize" for name in self._figures]
        study: optuna.Study = self._optuna.create_study(directions=directions, sampler=sampler)
        study.add_trials([self._frozen(record) for record in records])
        return study

    def _frozen(self, record: TrialRecord) -> "optuna.trial.FrozenTrial":
        states, outcome = self._optuna.trial.TrialState, record.outcome(self._figures)
        values, partial = None, {}
        if record.state == "failed":
            state = states.FAIL
        elif record.state == "finished" and outcome is not None:
            state, values = states.COMPLETE, list(outcome)
        elif record.state in ("paused", "stopped") and outcome is not None and len(self._figures) == 1:
            state, partial = states.PRUNED, {record.epochs: outcome[0]}
        else:
            state = states.RUNNING
        trial: optuna.trial.FrozenTrial = self._optuna.trial.create_trial(
            state=state,
            values=values,
            params=self.space.params(record.values),
            distributions=self._distributions,
            intermediate_values=partial,
            system_attrs=self._attributes.get(record.number, {}),
        )
        return trial

    def _sampler(self, records: Sequence[TrialRecord], number: int) -> "optuna.samplers.BaseSampler":
        seed = int(np.random.SeedSequence([self._settings.seed % 2**32, number]).generate_state(1)[0])
        before = [each for each in records if each.number not in self._attributes and each.state == "finished"]
        return SAMPLERS[self._settings.sampler](self._optuna.samplers, seed, [self._frozen(each) for each in before])


def best_records(records: Sequence[TrialRecord], figures: Sequence[str]) -> list[TrialRecord]:
    """The best trial; with several figures, the trials that no other dominates, sorted by the first figure."""
    known = [(record, outcome) for record in records if (outcome := record.outcome(figures)) is not None]
    signs = [-1.0 if is_minimised(name) else 1.0 for name in figures]
    merits = [tuple(sign * value for sign, value in zip(signs, outcome, strict=True)) for _, outcome in known]
    chosen = [
        (merit, record)
        for merit, (record, _) in zip(merits, known, strict=True)
        if not any(_dominates(other, merit) for other in merits)
    ]
    chosen.sort(key=lambda pair: (tuple(-each for each in pair[0]), pair[1].number))
    return [record for _, record in (chosen if len(figures) > 1 else chosen[:1])]


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a >= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)
