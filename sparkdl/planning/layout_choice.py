"""Which layout is best for the ranks there are, of those whose steps are the steps of whole replicas."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sparkdl.planning.layout_costs import layout_name
from sparkdl.settings import RankLayout
from sparkdl.settings.strategies import AllReduceOptions
from sparkdl.tables import aligned

__all__ = ["Choice", "Choices"]

SAME = 1.05
"""How many times as many rows a second a layout has to learn from to be taken instead of a simpler one: a prediction is
not more exact than that."""


class Choice(NamedTuple):
    """A layout with a strategy, and what is predicted of it."""

    layout: RankLayout
    strategy: AllReduceOptions
    seconds: float
    """Of a step."""
    rows: int
    """That a step learns from."""
    memory: float
    """Bytes that a rank holds in a step, over Python and its libraries."""
    sent: float
    """Bytes that a rank sends in a step."""

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
        return f'"cluster.layout={layout_name(self.layout)}"{strategy}'

    @property
    def speed(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds


class Choices(NamedTuple):
    """All of them, simple ones first."""

    possible: Sequence[Choice]
    refused: Mapping[str, str]
    """What cannot be had, with the reasons."""
    room: float
    """Bytes of memory that each rank may take, over Python and its libraries."""

    @property
    def best(self) -> Choice | None:
        """The simplest of those that fit and are about as fast as the fastest one; None if none fits."""
        fitting = [each for each in self.possible if each.memory <= self.room]
        most = max((each.speed for each in fitting), default=0.0)
        return next((each for each in fitting if SAME * each.speed >= most), None)

    @property
    def advice(self) -> str:
        """Which one is best, in words."""
        left = f"each rank has {self.room / 1e6:,.0f} MB left"
        if best := self.best:
            return f"{left}; of the layouts that fit, {best.name} learns from most rows a second: {best.overrides}"
        least = min(self.possible, key=lambda each: each.memory)
        return (
            f"{left}, and no layout fits: {least.name} takes {least.memory / 1e6:,.0f} MB; take more ranks, fewer rows"
            " (train.batch_size), or give ranks more memory"
        )

    @property
    def table(self) -> str:
        """A line for each."""
        lines = [["cluster.layout", "ms a step", "rows/s", "MB a rank", "MB sent in a step", "rows of a step"]]
        for each in self.possible:
            speed = f"{1e3 * each.seconds:,.1f}", f"{each.speed:,.0f}"
            sizes = f"{each.memory / 1e6:,.0f}", f"{each.sent / 1e6:,.2f}", f"{each.rows:,}"
            lines.append([each.name, *speed, *sizes])
        reasons: dict[str, list[str]] = {}
        for name, reason in self.refused.items():
            reasons.setdefault(reason, []).append(name)
        return "\n".join([aligned(lines), *(f"not {', '.join(names)}: {reason}" for reason, names in reasons.items())])
