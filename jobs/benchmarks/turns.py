"""Several ways to the same end, measured in turn: the speed of a shared machine changes within minutes."""

import time
from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame

__all__ = ["seconds_in_turn", "take_turns"]


def seconds_in_turn(
    ways: Mapping[str, Callable[[], object]], rounds: int, *, warms_up: bool = True
) -> dict[str, list[float]]:
    """Seconds that each way takes, round by round, after one that only warms up."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for round_ in range(-1 if warms_up else 0, rounds):
        for way, act in ways.items():
            started = time.perf_counter()
            act()
            if round_ >= 0:
                seconds[way].append(time.perf_counter() - started)
    return seconds


def take_turns(frames: Mapping[str, DataFrame], rows: int, rounds: int) -> dict[str, list[float]]:
    """Rows per second of each, round by round; the first round only warms up. Results go to Spark's ``noop`` sink."""
    ways = {name: frame.write.format("noop").mode("overwrite").save for name, frame in frames.items()}
    return {name: [rows / each for each in seconds] for name, seconds in seconds_in_turn(ways, rounds).items()}
