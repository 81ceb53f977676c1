"""The benchmark's tables."""

from itertools import pairwise
from statistics import median

from benchmarks.communication.results import MethodResults, Results
from benchmarks.report import Report, Target

__all__ = ["confirmations", "exchanges", "methods_on_links"]

MISSING = "-"
ALIKE = 0.1  # what the cost model is allowed to be wrong by: of closer ones it cannot tell which is faster


def methods_on_links(results: Results) -> Report:
    """Each method on each link: seconds to both targets, and what a step takes."""
    near = results.near_the_best
    columns = ["link", "method", "rate", f"steps to {results.target:.1%}", "s (product)", "all-reduce takes, times"]
    columns += [f"steps to {near:.1%}", "s (product)", "at the end", "on test rows", "MB a step", "exchanging"]
    columns += ["s a step", "predicted"]
    return Report(
        title=f"communication: {results.ranks} ranks with {results.rows} rows each, {results.network}",
        columns=columns,
        rows=[_row(results, found, link) for link in results.links for found in results.methods],
        targets=_targets(results),
        note=f"Medians of {len(results.methods[0].curves)} seeds, with the least and the most. Learning rates: the best"
        f" of {results.tries} for each method, on validation rows. A product is steps (on links without a limit) times"
        " seconds a step (on this link); the next table confirms some of them by whole runs. The cost model predicts"
        " from exchanges of three sizes on the link, and from computing and bytes on links without a limit.",
    )


def confirmations(results: Results) -> Report:
    """Whole runs on a link, beside their products."""
    return Report(
        title="communication: whole runs on the link",
        columns=["method", "link", "steps", "s, the whole run", "s, the product", "ratio"],
        rows=[
            [each.method, each.link, str(each.steps), each.seconds, each.product, each.seconds / each.product]
            for each in results.confirmations
        ],
        note=f"Until {results.target:.1%} of the validation rows are right. Looks at them do not count as time.",
    )


def exchanges(results: Results) -> Report:
    """The same mean in each topology, with a rank on each host and with two."""
    seconds = {(each.hosts, each.topology): each.seconds for each in results.exchanges}
    shared = min((each.hosts for each in results.exchanges), default=0)
    ring, levels = seconds.get((shared, "ring")), seconds.get((shared, "two_levels"))
    return Report(
        title=f"communication: one mean over {results.ranks} ranks, {next(iter(results.links))}",
        columns=["hosts", "topology", "MB", "s", "predicted"],
        rows=[
            [
                str(each.hosts),
                each.topology.replace("_", " "),
                each.megabytes,
                each.seconds,
                MISSING if each.predicted is None else each.predicted,
            ]
            for each in results.exchanges
        ],
        targets=[Target(f"ring over two levels, {shared} hosts", ring / levels, 1.5)] if ring and levels else [],
    )


def _row(results: Results, found: MethodResults, link: str) -> list[str | float]:
    on_link = found.links[link]
    steps, baseline = found.median_steps_to(results.target), results.methods[0]
    seconds = steps and steps * on_link.seconds
    theirs = (all_reduce := baseline.median_steps_to(results.target)) and all_reduce * baseline.links[link].seconds
    near = found.median_steps_to(results.near_the_best)
    return [
        link,
        found.name,
        f"{found.rate:g}",
        _with_spread(found, results.target),
        seconds or MISSING,
        theirs / seconds if theirs and seconds else MISSING,
        _with_spread(found, results.near_the_best),
        near * on_link.seconds if near else MISSING,
        f"{found.final:.1%}",
        f"{median(found.test):.1%}",
        on_link.megabytes,
        f"{on_link.exchanging:.0%}",
        on_link.seconds,
        on_link.predicted,
    ]


def _with_spread(found: MethodResults, target: float) -> str:
    """The median number of steps, and the least and the most of all seeds."""
    steps = found.steps_to(target)
    reached = [each for each in steps if each is not None]
    if not reached:
        return MISSING
    most = max(reached) if len(reached) == len(steps) else MISSING
    return f"{found.median_steps_to(target) or MISSING} ({min(reached)} to {most})"


def _targets(results: Results) -> list[Target]:
    """How far the cost model is off, and how much accuracy the methods lose in the end."""
    pairs = [(on_link.predicted, on_link.seconds) for found in results.methods for on_link in found.links.values()]
    errors = [abs(predicted - seconds) / seconds for predicted, seconds in pairs]
    lost = [results.methods[0].final - found.final for found in results.methods[1:]]
    return [
        Target("cost model: median error", median(errors), 0.1, at_most=True),
        Target("cost model: neighbours by predicted time that are in order", _in_order(results), 1.0),
        Target(f"of those further apart than {ALIKE:.0%}", _in_order(results, apart=ALIKE), 1.0),
        Target("accuracy lost at the end, the most, points", 100 * max(lost, default=0.0), 0.5, at_most=True),
    ]


def _in_order(results: Results, *, apart: float = 0.0) -> float:
    """The part of methods that follow each other by predicted time and do so by measured time, too.

    Pairs count whose measured times differ by more than ``apart``, a part of the longer one.
    """
    right = [
        before <= after
        for link in results.links
        for before, after in pairwise(
            found.links[link].seconds
            for found in sorted(results.methods, key=lambda found: found.links[link].predicted)
        )
        if abs(before - after) > apart * max(before, after)
    ]
    return sum(right) / len(right) if right else 1.0
