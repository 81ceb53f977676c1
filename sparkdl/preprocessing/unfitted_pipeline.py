"""Stages of which some are yet to be fitted, and what each look at the training rows has to find for them."""

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
    """What some rows say to a stage."""

    stage: int
    """Its place among all stages."""
    sums: ExactSums
    texts: tuple[pa.Array, ...]
    """What is counted, by place."""


@dataclass(frozen=True)
class UnfittedPipeline:
    """The stages in their order. Small; goes to tasks."""

    stages: tuple[FittedStage | Learner, ...]
    output: str
    """The column that they end in."""

    @property
    def needs(self) -> dict[str, int | None]:
        """As :attr:`FittedPipeline.needs`."""
        return FittedPipeline(tuple(each for each in self.stages if isinstance(each, FittedStage))).needs

    @property
    def learners(self) -> dict[int, Learner]:
        """By place, the stages that can be fitted next: nothing that they read waits for another one."""
        return self._next()[1]

    def look(self, columns: Mapping[str, Column]) -> list[Found]:
        """What some training rows say to :attr:`learners`. Runs in a task.

        ``columns`` are raw ones, as :func:`~sparkdl.preprocessing.as_fitted` makes them.
        """
        before, learners = self._next()
        known = dict(columns)
        for stage in before:
            known |= stage.transform(known)
        return [Found(place, learner.sums(known), tuple(learner.texts(known))) for place, learner in learners.items()]

    def learned(self, facts: Mapping[int, Facts]) -> "UnfittedPipeline":
        """The pipeline with what :attr:`learners` have learned. Runs on the driver; raises what they raise."""
        stages: list[FittedStage | Learner] = []
        for place, stage in enumerate(self.stages):
            stages += stage.learn(facts[place]) if isinstance(stage, Learner) and place in facts else [stage]
        return replace(self, stages=tuple(stages))

    def fitted(self) -> FittedPipeline:
        """The pipeline, once nothing is left to learn."""
        return FittedPipeline(tuple(stage for stage in self.stages if isinstance(stage, FittedStage)))

    def _next(self) -> tuple[list[FittedStage], dict[int, Learner]]:
        """The stages that rows can go through already, as far as a learner needs them, and the learners behind them."""
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
