"""Ranks on a real cluster: a master, two workers, and executors as processes of their own; one submission for all."""

import json
from pathlib import Path
from subprocess import CompletedProcess

import pytest

PROGRAM = Path(__file__).parent / "programs" / "launches.py"


@pytest.fixture(scope="module")
def done(standalone) -> CompletedProcess[str]:
    return standalone.submit(PROGRAM)


@pytest.fixture(scope="module")
def report(done) -> dict:
    return json.loads(done.stdout.splitlines()[-1])


def test_ranks_in_two_executors_reduce_to_the_same_sum(report) -> None:
    assert [total for total, _, _ in report["first"]["results"]] == [3.0, 3.0]
    assert len({executor for _, _, executor in report["first"]["results"]}) == 2


def test_the_next_launch_reuses_the_python_workers(report) -> None:
    first, second = ({process for _, process, _ in report[launch]["results"]} for launch in ("first", "second"))
    assert first == second


def test_large_tensors_ask_for_huge_pages_where_linux_has_them(report) -> None:
    assert report["huge pages"]["results"] == [Path("/sys/kernel/mm/transparent_hugepage/enabled").exists()]


def test_too_many_ranks_are_refused_after_the_timeout_with_both_numbers_said_before(report, done) -> None:
    assert "waiting up to 1 s for 3 slots; the cluster has 2 now" in done.stdout
    assert report["too many"]["error"] == "NotEnoughSlotsError"
    assert "3 ranks were requested, but the cluster has 2 slots after 1 s" in report["too many"]["message"]
    assert report["too many"]["seconds"] < 5


def test_a_raising_rank_is_the_first_cause(report) -> None:
    assert report["raising"]["message"].startswith("Traceback")
    assert "ValueError: boom\n\nrank 1 of 2 failed" in report["raising"]["message"]


def test_a_killed_executor_is_an_error_that_names_the_rank_and_not_a_hang(report) -> None:
    assert report["killed"]["error"] == "RankError"
    assert report["killed"]["rank"] == 1
    assert report["killed"]["seconds"] < 40  # five while nothing else runs


def test_a_stopped_rank_is_named_and_its_process_is_ended(report) -> None:
    stopped = report["stopped"]
    assert (stopped["exception_type"], stopped["rank"], stopped["step"]) == ("silent", 1, 4)
    assert stopped["host"] == "127.0.0.1"
    assert stopped["left over"] == []


def test_a_stopped_executor_is_noticed_and_replaced(report) -> None:
    stopped = report["stopped executor"]
    assert (stopped["exception_type"], stopped["rank"]) == ("silent", 1)
    assert "its executor has been stopped for 5 s" in stopped["message"]
    assert stopped["left over"] == []
    assert stopped["executors"][1] not in [executor for _, _, executor in report["afterwards"]["results"]]


def test_the_cluster_is_usable_after_failures(report) -> None:
    assert [total for total, _, _ in report["afterwards"]["results"]] == [3.0, 3.0]


def test_nobody_sees_a_screenful_of_jvm_frames(done) -> None:
    assert "ERROR TransportClient: Failed to send RPC\njava.io.IOException: Broken pipe" in done.stderr
    assert "\tat " not in done.stdout + done.stderr
