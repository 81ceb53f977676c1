"""Real runs on a real cluster whose processes are killed and stopped: each ends as if nothing had happened."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.faults.injector import LETTING_GO, SILENCE, Fault
from benchmarks.faults.run import disturbed, fault_bench
from benchmarks.faults.scenario import Scenario, Verdict

KILLED_OR_STOPPED = [
    Fault("rank killed", 20),
    Fault("rank stopped", 50),
    Fault("executor killed", 80),
    Fault("worker killed", 110),
    Fault("driver killed", 140),
    Fault("executor stopped", 175),  # last, because its rank trains on without it
]
UNNOTICED = [Fault("MLflow killed", 5), Fault("rank starved", 32), Fault("disk full", 92)]
FORETOLD = [Fault("executor decommissioned", 65), Fault("host preempted", 125)]
NOTICED = 3 * SILENCE  # seconds that results may take to come home; a rank is given up sooner


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    with fault_bench(tmp_path_factory.mktemp("faults")) as bench:
        yield bench


@pytest.fixture(scope="module")
def everything(bench: Scenario) -> Iterator[Verdict]:
    """One run that meets with all of them, and keeps its checkpoints on a small disk of its own."""
    runs = bench.folder.parent / "everything" / "runs"
    runs.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(runs)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield disturbed(bench, "everything", [*KILLED_OR_STOPPED, *UNNOTICED, *FORETOLD])
    finally:
        if mounted:
            subprocess.run(["umount", str(runs)], check=True)


def log_of(bench: Scenario, name: str) -> str:
    return (bench.folder.parent / name / "driver.log").read_text(errors="replace")


def assert_nothing_was_lost(verdict: Verdict, log: str) -> None:
    assert verdict.finished, log[-8000:]
    assert (verdict.misused_rows, verdict.curve_errors, verdict.left_over) == (0, 0, 0), log[-8000:]


@pytest.mark.parametrize("kind", [fault.kind for fault in KILLED_OR_STOPPED])
def test_each_fault_is_found_in_time_and_the_run_goes_on(kind: str, everything: Verdict) -> None:
    (injection,) = [each for each in everything.injections if each.fault.kind == kind]
    assert kind == "driver killed" or injection.detected < NOTICED + LETTING_GO  # a new driver finds nothing out
    assert injection.ended is not None and injection.ended < LETTING_GO
    assert kind == "executor stopped" or injection.recovered is not None  # nothing was left to train


@pytest.mark.parametrize("kind", [fault.kind for fault in FORETOLD])
def test_an_executor_with_notice_is_left_within_seconds(kind: str, everything: Verdict) -> None:
    (injection,) = [each for each in everything.injections if each.fault.kind == kind]
    assert injection.ended is not None and injection.ended < 5, "a checkpoint is written, and the ranks have ended"
    assert injection.recovered is not None


def test_neither_a_killed_mlflow_nor_a_starved_rank_nor_a_full_disk_ends_an_attempt(
    everything: Verdict, bench: Scenario
) -> None:
    assert {fault.kind for fault in UNNOTICED} <= {each.fault.kind for each in everything.injections}
    others = len(KILLED_OR_STOPPED) - 1  # a killed driver says nothing
    assert log_of(bench, "everything").count("another attempt goes on") == others


def test_all_of_them_together_change_no_bit_of_the_weights(everything: Verdict, bench: Scenario) -> None:
    assert_nothing_was_lost(everything, log_of(bench, "everything"))
    assert everything.identical


def test_a_run_goes_on_with_the_ranks_that_are_left_and_grows_back(bench: Scenario) -> None:
    settings = {"num_ranks": {"min": 1, "max": 2}, "slot_timeout": 3}
    scenario = replace(bench, cluster_settings=settings, pause=0.1)
    verdict = disturbed(scenario, "elastic", [Fault("worker lost", 45)])
    log = log_of(bench, "elastic")
    assert_nothing_was_lost(verdict, log)
    assert "going on with 1 ranks instead of 2" in log
    assert "more slots are free" in log
