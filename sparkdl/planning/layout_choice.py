"""Which layout is best for the ranks there are, of those whose steps are the steps of whole replicas."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparkdl.planning.layout_names import layout_name, layout_setting
from sparkdl.settings import RankLayout
from sparkdl.settings.strategies import AllReduceOptions
from sparkdl.tables import aligned

__all__ = ["Choice", "Choices"]

SAME = 1.05
"""How many times as many rows a second a layout has to learn from to be taken instead of a simpler one: neither a
prediction nor a few steps are more exact than that."""
WORTH_TRYING = 2.0
"""Layouts are tried whose predicted steps take at most so many times as long as the fastest one's: where ranks share
cores, measured steps took 0.6 to 2.3 times as long as predicted (``jobs/benchmark.py layout_plan``)."""
MOST_TRIES = 4


class Choice(NamedTuple):
    """A layout with a strategy, and what is predicted of it."""

    layout: RankLayout
    strategy: AllReduceOptions
    predicted: float
    """Seconds of a step."""
    rows: int
    """That a step learns from."""
    memory: float
    """Bytes that a rank holds in a step, over Python and its libraries."""
    sent: float
    """Bytes that a rank sends in a step."""
    batches: int = 1
    """That a replica accumulates in a step."""
    measured: float | None = None
    """Seconds of a step, where ranks have tried it."""

    @property
    def name(self) -> str:
        """In a table."""
        shard = self.strategy.shard
        return layout_name(self.layout) + (f", shard: {shard}" if shard else "")

    @property
    def overrides(self) -> str:
        """As a command line says it."""
        shard = self.strategy.shard
        strategy = f' "train.strategy={{kind: allreduce, shard: {shard}}}"' if shard else ""
        accumulation = f" train.accumulation={self.batches}" if self.batches > 1 else ""
        return f'"cluster.layout={layout_setting(self.layout)}"{strategy}{accumulation}'

    @property
    def speed(self) -> float:
        """Rows a second: as measured, or else as predicted."""
        return self.rows / (self.measured or self.predicted)


class Choices(NamedTuple):
    """All of them, simple ones first."""

    possible: Sequence[Choice]
    refused: Mapping[str, str]
    """What cannot be had, with the reasons."""
    room: float
    """Bytes of memory that each rank may take, over Python and its libraries."""

    @property
    def worth_trying(self) -> list[Choice]:
        """Those that fit and may be the best: several, the fastest prediction first; none if there is no choice."""
        fastest = sorted(self._fitting, key=lambda each: each.speed, reverse=True)
        near = [each for each in fastest if WORTH_TRYING * each.speed >= fastest[0].speed]
        return near[:MOST_TRIES] if len(near) > 1 else []

    def replaced(self, choice: Choice, by: Choice | str) -> "Choices":
        """After a try: the choice with what was measured, or among those that cannot be had, with the reason."""
        if isinstance(by, str):
            possible = [each for each in self.possible if each is not choice]
            return self._replace(possible=possible, refused={**self.refused, choice.name: by})
        return self._replace(possible=[by if each is choice else each for each in self.possible])

    @property
    def best(self) -> Choice | None:
        """The simplest of those that fit and are about as fast as the fastest one; None if none fits.

        Where ranks have tried some, it is one of these.
        """
        compared = [each for each in self._fitting if each.measured] or self._fitting
        most = max((each.speed for each in compared), default=0.0)
        return next((each for each in compared if SAME * each.speed >= most), None)

    @property
    def _fitting(self) -> list[Choice]:
        return [each for each in self.possible if each.memory <= self.room]

    @property
    def advice(self) -> str:
        """Which one is best, in words."""
        left = f"each rank has {self.room / 1e6:,.0f} MB left"
        if best := self.best:
            return f"{left}; of the layouts that fit, {best.name} learns from most rows a second: {best.overrides}"
        if not self.possible:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
            return f"{left}, and no layout works: {reasons}"
        least = min(self.possible, key=lambda each: each.memory)
        return (
            f"{left}, and no layout fits: {least.name} takes {least.memory / 1e6:,.0f} MB; take more ranks, fewer rows"
            " (train.batch_size), or give ranks more memory"
        )

    @property
    def table(self) -> str:
        """A line for each."""
        columns = "ms predicted", "ms measured", "rows/s", "MB a rank", "MB sent in a step", "rows of a step"
        lines = [["cluster.layout", *columns]]
        for each in self.possible:
            measured = f"{1e3 * each.measured:,.1f}" if each.measured else "-"
            speed = f"{1e3 * each.predicted:,.1f}", measured, f"{each.speed:,.0f}"
            sizes = f"{each.memory / 1e6:,.0f}", f"{each.sent / 1e6:,.2f}", f"{each.rows:,}"
            lines.append([each.name, *speed, *sizes])
        reasons: dict[str, list[str]] = {}
        for name, reason in self.refused.items():
            reasons.setdefault(reason, []).append(name)
        return "\n".join([aligned(lines), *(f"not {', '.join(names)}: {reason}" for reason, names in reasons.items())])
