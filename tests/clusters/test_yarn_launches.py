"""Launches on YARN: how long one of warm ranks takes, one whose rank is too large for its container, and their logs."""

import json
from statistics import median
from typing import Any

import pytest

from .hadoop import PROGRAMS, PROPERTIES, Hadoop

SECONDS = 0.6
"""Of a warm launch, on cores that nobody else uses; the test allows for a machine that is busy."""


@pytest.fixture(scope="module")
def report(hadoop: Hadoop) -> dict[str, Any]:
    done = hadoop.submit(PROGRAMS / "launches_on_yarn.py", options=PROPERTIES)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_ranks_are_warm_from_launch_to_launch(report: dict[str, Any]) -> None:
    seconds = report["seconds"]
    print(f"warm launch on YARN: median {median(seconds):.2f} s, {min(seconds):.2f} to {max(seconds):.2f} s")
    assert median(seconds) < 5 * SECONDS


def test_a_rank_that_is_too_large_for_its_container_names_the_setting_to_raise(report: dict[str, Any]) -> None:
    assert report["error"] == "RankError"
    assert "exceeding physical memory limits" in report["message"], report["message"]
    assert "raise `spark.executor.memoryOverhead`, now 1600 MiB, to more than 1" in report["message"]


def test_yarn_keeps_the_logs_of_ranks(report: dict[str, Any], hadoop: Hadoop) -> None:
    logs = hadoop.tool("logs", "-applicationId", report["application"], "-log_files", "stderr,stdout")
    assert "rank 0 says this in its container" in logs, logs[-4000:]
