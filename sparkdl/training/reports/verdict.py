"""The bottleneck of a run, in words, and its trace as a file. Runs on the driver."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl.training.reports.stopwatch import RankTimes

__all__ = ["ADVICE", "WITH_SERVERS", "Timeline", "shares", "verdict"]

SMALL = 0.1
"""A smaller share of the time is not worth a remedy."""
ADVICE = {
    "loading": "give each rank more cores or faster storage, move costly preprocessing into prepare, or copy rows that"
    " stay in place (prepare.in_place: false)",
    "exchanging": "exchange less: a larger train.batch_size or train.accumulation, or a train.strategy that agrees now"
    " and then (local_sgd, diloco)",
    "saving": "write fewer checkpoints (train.checkpoint_minutes, train.checkpoint_steps), or to faster storage",
}
WITH_SERVERS = ADVICE | {
    "exchanging": "let workers push and fetch less often (train.strategy.period, fetch_period), or spread"
    " parameters over more cluster.servers",
    "waiting": "let workers run further ahead of the slowest (train.strategy.staleness), or start fewer of them: there"
    " was no work for all",
}
"""Remedies that differ in asynchronous training."""


def shares(times: Sequence[RankTimes]) -> dict[str, float]:
    """Figures of an epoch: means over ranks, and each rank's seconds under ``rank_0/loading_seconds`` and so on.

    ``communication_share`` is the share of time in which ranks exchange or wait for each other;
    ``scaling_efficiency`` is the rest. It is an upper bound, because ranks of one host also slow each other down by
    sharing cores and memory, which a single run cannot measure.
    """
    total = sum(each.seconds for each in times)
    share = sum(each.exchanging + each.waiting for each in times) / total if total else 0.0
    steps = sum(each.steps for each in times)
    figures = {
        "communication_share": share,
        "scaling_efficiency": 1 - share,
        "bytes_per_step": sum(each.bytes_sent for each in times) / steps if steps else 0.0,
    }
    for rank, each in enumerate(times):
        for kind in ("loading", "computing", "exchanging", "waiting", "saving"):
            figures[f"rank_{rank}/{kind}_seconds"] = getattr(each, kind)
    return figures


def verdict(epochs: Sequence[Sequence[RankTimes]], advice: Mapping[str, str] = ADVICE) -> str:
    """The run's bottleneck and a remedy, from each rank's times in its epochs; ``advice`` has remedies by bottleneck.

    If the number of ranks has changed, only the epochs with the last number count.
    """
    if not epochs:
        return "nothing was trained, so that nothing can be said of its speed"
    alike = [each for each in epochs if len(each) == len(epochs[-1])]
    times = [RankTimes(*map(sum, zip(*of_rank, strict=True))) for of_rank in zip(*alike, strict=True)]
    total = sum(each.seconds for each in times) or 1.0
    # Where one rank takes longer than the others, the others wait for it: this counts only as waiting.
    by_kind = {kind: len(times) * min(getattr(each, kind) for each in times) / total for kind in ADVICE}
    by_kind["waiting"] = sum(each.waiting for each in times) / total
    kind, share = max(by_kind.items(), key=lambda item: item[1])
    if share < SMALL:
        computing = sum(each.computing for each in times) / total
        return (
            f"bound by computing: ranks computed for {computing:.0%} of their time; more ranks or faster ones make it"
            " faster"
        )
    if kind not in advice:
        return _waiting(times)
    per_step = sum(getattr(each, kind) for each in times) / max(1.0, sum(each.steps for each in times))
    sent = sum(each.bytes_sent for each in times) / max(1.0, sum(each.steps for each in times))
    size = f", {sent / 1e6:,.1f} MB a step" if kind == "exchanging" else ""
    return (
        f"bound by {kind}: {share:.0%} of the ranks' time, {per_step * 1e3:,.1f} ms a step{size}; to change that,"
        f" {advice[kind]}"
    )


def _waiting(times: Sequence[RankTimes]) -> str:
    """The verdict if ranks waited for one of them: which rank it was, and what it did meanwhile."""
    slowest = min(range(len(times)), key=lambda rank: times[rank].waiting)
    longest = max(range(len(times)), key=lambda rank: times[rank].waiting)
    others = [each for rank, each in enumerate(times) if rank != slowest]
    more = {
        kind: getattr(times[slowest], kind) - sum(getattr(each, kind) for each in others) / len(others)
        for kind in ("loading", "computing", "saving")
    }
    kind = max(more, key=lambda each: more[each])
    steps = max(1.0, times[slowest].steps)
    cure = {
        "loading": ADVICE["loading"],
        "computing": "look for what else uses its host's cores, or let ranks agree less often (train.strategy:"
        " local_sgd)",
        "saving": ADVICE["saving"],
    }[kind]
    return (
        f"bound by waiting: rank {longest} waited {times[longest].waiting / times[longest].seconds:.0%} of its time for"
        f" rank {slowest}, whose {kind} took {getattr(times[slowest], kind) / steps * 1e3:,.1f} ms a step,"
        f" {more[kind] / steps * 1e3:,.1f} ms more than that of the others; to change that, {cure}"
    )


class Timeline:
    """Collects the traces of ranks for Perfetto (ui.perfetto.dev) or chrome://tracing, with one row per rank."""

    def __init__(self) -> None:
        self._events: list[dict[str, Any]] = []
        self._ranks: set[int] = set()

    def add(self, rank: int, events: Sequence[dict[str, Any]]) -> None:
        """Add events of :class:`~sparkdl.training.reports.stopwatch.Stopwatch`."""
        self._ranks.add(rank)
        self._events += [{**event, "ph": "X", "pid": 0, "tid": rank} for event in events]

    def to_json(self) -> str:
        """Chrome's trace event format."""
        names = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": {"name": f"rank {rank}"}}
            for rank in sorted(self._ranks)
        ]
        return json.dumps({"traceEvents": names + self._events, "displayTimeUnit": "ms"})
