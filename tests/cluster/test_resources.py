"""Ranks that get more than the tasks of their application: on a cluster whose executors have two cores each."""

from pathlib import Path

import pytest

from benchmarks.standalone import standalone_cluster

from ..conftest import reported

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "resources.py"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict:
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), cores=(2, 2), pythonpath=str(ROOT)) as cluster:
        return reported(cluster.command(PROGRAM), cluster.environment, timeout=240)


def test_each_rank_has_the_cores_that_were_asked_for_without_another_start_of_the_application(report: dict) -> None:
    assert report["plain"] == [1, 1, 1, 1]
    assert report["whole"] == [2, 2]


def test_slots_are_counted_for_what_each_rank_needs(report: dict) -> None:
    assert report["slots"] == [4, 2, 0]


@pytest.mark.parametrize(("asked", "words"), [("too large", "3 cores per task"), ("no gpu", "1 GPU per task")])
def test_what_no_executor_has_is_named_within_seconds(report: dict, asked: str, words: str) -> None:
    assert report[asked]["error"] == "ClusterError"
    assert f"cluster.resources needs {words}, but no executor has that" in report[asked]["message"]
    assert report[asked]["seconds"] < 8
