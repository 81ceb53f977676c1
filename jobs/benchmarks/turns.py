"""Several ways to compute the same rows, measured in turn: the speed of a shared machine changes within minutes."""

import time
from collections.abc import Mapping

from pyspark.sql import DataFrame

__all__ = ["take_turns"]


def take_turns(frames: Mapping[str, DataFrame], rows: int, rounds: int) -> dict[str, list[float]]:
    """Rows per second of each, round by round; the first round only warms up. Results go to Spark's ``noop`` sink."""
    rates: dict[str, list[float]] = {name: [] for name in frames}
    for round_ in range(rounds + 1):
        for name, frame in frames.items():
            started = time.perf_counter()
            frame.write.format("noop").mode("overwrite").save()
            if round_:
                rates[name].append(rows / (time.perf_counter() - started))
    return rates
