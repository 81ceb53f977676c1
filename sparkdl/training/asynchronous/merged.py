"""The figures of an asynchronous epoch: what servers have merged, and how workers have spent their time.

Runs where the coordinator does.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from sparkdl.training.asynchronous.portions import Portions
from sparkdl.training.reports.stopwatch import RankTimes
from sparkdl.training.tasks import Task

__all__ = ["Merged", "figures_of", "times_of"]


class Merged(NamedTuple):
    """What servers have merged of an epoch."""

    totals: list[float]
    """Summed loss, the sums of the task's figures, and the weight of all rows; empty if there were no rows."""
    rows: float
    steps: int
    staleness: Counter[int]
    """The number of pushes, by their staleness."""

    @classmethod
    def most(cls, tallies: Iterable[Mapping[str, Any]], epoch: int) -> Self:
        """The tally of the server that has merged the most rows of the epoch."""
        found = [
            cls(totals, rows, int(steps), Counter(dict(tally["staleness"])))
            for tally in tallies
            if tally["round"] == epoch and tally["sums"]
            for *totals, rows, steps in [tally["sums"]]
        ]
        return max(found, key=lambda each: each.rows, default=cls([], 0.0, 0, Counter()))


def figures_of(merged: Merged, dealt: Sequence[Portions], task: Task, *, seconds: float) -> dict[str, float]:
    """Means over the rows that count, and how asynchronous the epoch was.

    ``staleness_p50`` and so on are quantiles over the pushes; ``backups_won`` is the share of the backup tasks that
    finished before the worker that had the portion first.
    """
    rows = max(merged.rows, 1.0)
    pushes = sorted(merged.staleness.elements())
    backups = sum(portions.backups for portions in dealt)
    times = times_of(dealt)
    total = sum(each.seconds for each in times) or 1.0
    loss, *sums, weight = merged.totals or [*[0.0] * (1 + task.sum_size), 1.0]
    figures = {
        "train_loss": loss / weight,
        **{f"train_{name}": value for name, value in task.figures(sums, weight).items()},
        "rows_per_second": rows / seconds,
        "rows": merged.rows,
        "pushes_per_second": len(pushes) / seconds,
        "waiting_share": sum(each.exchanging + each.waiting for each in times) / total,
    }
    if pushes:
        quantiles = {"p50": 0.5, "p90": 0.9, "max": 1.0}
        figures |= {f"staleness_{name}": pushes[round(part * (len(pushes) - 1))] for name, part in quantiles.items()}
    if backups:
        figures["backups_won"] = sum(portions.backups_won for portions in dealt) / backups
    return figures


def times_of(dealt: Sequence[Portions]) -> list[RankTimes]:
    """By worker that has finished a portion: how it has spent its time, summed over its portions."""
    times: dict[int, RankTimes] = {}
    for portions in dealt:
        for result in portions.results.values():
            more = RankTimes(*result["times"])
            before = times.get(result["worker"], RankTimes(*[0.0] * len(more)))
            times[result["worker"]] = RankTimes(*map(sum, zip(before, more, strict=True)))
    return [times[worker] for worker in sorted(times)]
