"""``jobs/benchmark.py memory``: what its ranks train under a limit, and what is made of it."""

import pytest

from benchmarks.memory import CASES, MB, Case, Found, report, train
from sparkdl.data import Dataset

SMALL = Case("4-64-64-4", (64, 64), limit=2_000 * MB, epochs=2, rate=0.01, sparse=False)
TOO_LARGE = Case("4-16,000-16,000-4", (16_000, 16_000), limit=1_000 * MB, epochs=1, rate=0.01, sparse=False)
"""Whose weights alone take 1,024 MB."""


def test_what_has_room_is_trained_and_registered_and_what_has_none_says_so(
    clouds: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.memory.SIZE", 2)
    trained = train(clouds, SMALL, "ist, sharded")
    assert trained.outcome.startswith("trained: loss 1.") and trained.outcome.endswith("MB registered")
    assert isinstance(trained.peak, float) and 50 < trained.peak < 2_000
    assert train(clouds, TOO_LARGE, "allreduce") == Found("out of memory", "", "")


def test_the_table_says_how_far_beyond_the_limit_a_network_is_and_whether_each_ended_as_expected() -> None:
    case = CASES[1]
    ended = {"allreduce": Found("out of memory", "", ""), "ist, sharded": Found("out of memory", "", "")}
    table = report([(case, case.limit, strategy, found) for strategy, found in ended.items()])
    assert [row[4] for row in table.rows] == [3, 3]
    assert [target.reached for target in table.targets] == [True, False]
