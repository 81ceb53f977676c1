"""A pipeline with stages that are not fitted yet; each pass over the training rows fits the next ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from sparkdl.preprocessing.fitted_pipeline import FittedPipeline
from sparkdl.preprocessing.learner import Facts, Learner
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.sums import ExactSums
from sparkdl.preprocessing.values import Column

__all__ = ["Found", "UnfittedPipeline"]


class Found(NamedTuple):
    """The sums and texts of some rows for a stage."""

    stage: int
    """The index of the stage."""
    sums: ExactSums
    texts: tuple[pa.Array, ...]
    """The texts to count; see :meth:`Learner.texts`."""


@dataclass(frozen=True)
class UnfittedPipeline:
    """Fitted stages and learners in their order. Small; sent to tasks."""

    stages: tuple[FittedStage | Learner, ...]
    output: str
    """The column with the result."""

    @property
    def needs(self) -> dict[str, int | None]:
        """See :attr:`FittedPipeline.needs`."""
        return FittedPipeline(tuple(each for each in self.stages if isinstance(each, FittedStage))).needs

    @property
    def learners(self) -> dict[int, Learner]:
        """The learners that can be fitted in the next pass, by index: no column that they read waits for a learner."""
        return self._next()[1]

    def look(self, columns: Mapping[str, Column]) -> list[Found]:
        """The sums and texts of some training rows for :attr:`learners`. Runs in a task.

        ``columns`` are raw columns from :func:`~sparkdl.preprocessing.as_fitted`.
        """
        before, learners = self._next()
        known = dict(columns)
        for stage in before:
            known |= stage.transform(known)
        return [Found(place, learner.sums(known), tuple(learner.texts(known))) for place, learner in learners.items()]

    def learned(self, facts: Mapping[int, Facts]) -> "UnfittedPipeline":
        """The pipeline after :attr:`learners` have been fitted. Runs on the driver; raises their errors."""
        stages: list[FittedStage | Learner] = []
        for place, stage in enumerate(self.stages):
            stages += stage.learn(facts[place]) if isinstance(stage, Learner) and place in facts else [stage]
        return replace(self, stages=tuple(stages))

    def fitted(self) -> FittedPipeline:
        """The fitted pipeline, after all learners have been fitted."""
        return FittedPipeline(tuple(stage for stage in self.stages if isinstance(stage, FittedStage)))

    def _next(self) -> tuple[list[FittedStage], dict[int, Learner]]:
        """The learners that can be fitted next, and the fitted stages that make the columns that they read."""
        waiting: set[str] = set()
        ready: list[FittedStage] = []
        learners: dict[int, Learner] = {}
        for place, stage in enumerate(self.stages):
            waits = not waiting.isdisjoint(stage.reads)
            if isinstance(stage, Learner):
                learners |= {} if waits else {place: stage}
                waiting.update(stage.writes)
            elif waits:
                waiting.update(stage.writes)
            else:
                ready.append(stage)
        wanted = {name for learner in learners.values() for name in learner.reads}
        needed: list[FittedStage] = []
        for stage in reversed(ready):
            if not wanted.isdisjoint(stage.writes):
                needed.insert(0, stage)
                wanted.update(stage.reads)
        return needed, learners
