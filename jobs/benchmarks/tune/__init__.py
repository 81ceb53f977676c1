"""A search over settings: seconds to a figure, several trials at a time, beside MLflow's, and under random kills."""

from collections.abc import Callable, Sequence

import click

from benchmarks.report import Report

__all__ = ["PARTS", "run"]

PARTS = ("overhead", "several", "rival", "race", "deaths")
"""What there is to measure."""
QUICK = PARTS[:-2]
"""What is measured by default, within ten minutes: a seed of the race, or twenty deaths, take a quarter of an hour."""


def run(*, parts: Sequence[str] = (), seed: int = 0, seeds: int = 1, kills: int = 20) -> list[Report]:
    """Measure each part, by default those that take ten minutes in all; ``seed`` is the first of the ``seeds``.

    Runs on the driver, where no Spark may run yet.
    """
    from benchmarks.tune import deaths, overhead, race, rival, several  # which the tasks of some have no use for

    drawn = range(seed, seed + seeds)
    measures: dict[str, Callable[[], Report]] = {
        "overhead": overhead.run,
        "several": several.run,
        "rival": lambda: rival.run(seeds=drawn),
        "race": lambda: race.run(seeds=drawn),
        "deaths": lambda: deaths.run(kills=kills, seed=seed),
    }
    if unknown := set(parts) - set(PARTS):
        raise click.UsageError(f"tune has no part {min(unknown)}; it has {', '.join(PARTS)}")
    return [measures[part]() for part in parts or QUICK]
