"""Real runs on a real cluster whose processes are killed and stopped: each ends as if nothing had happened."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from sparkdl.benchmarks.faults.run import disturbed, fault_bench
from sparkdl.benchmarks.faults.scenario import SILENCE, Fault, Scenario, Verdict

STEP = 45  # five steps after a checkpoint, in the first epoch
FAULTS = [  # all into one run; its ranks train to the end without an executor, so that is stopped last
    Fault("rank killed", 15),
    Fault("rank stopped", 45),
    Fault("executor killed", 75),
    Fault("worker killed", 105),
    Fault("driver killed", 135),
    Fault("executor stopped", 165),
]
NOTICED = 3 * SILENCE  # seconds that results may take to come home; a rank is given up sooner
ENDED = 15.0  # seconds from a verdict to the end of an attempt, everywhere


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    with fault_bench(tmp_path_factory.mktemp("faults")) as bench:
        yield bench


@pytest.fixture(scope="module")
def killed_and_stopped(bench: Scenario) -> Verdict:
    return disturbed(bench, "killed and stopped", FAULTS)


def log_of(bench: Scenario, name: str) -> str:
    return (bench.folder.parent / name / "driver.log").read_text(errors="replace")


def assert_nothing_was_lost(verdict: Verdict, log: str) -> None:
    assert verdict.finished, log[-8000:]
    assert (verdict.misused_rows, verdict.curve_errors, verdict.left_over) == (0, 0, 0), log[-8000:]


@pytest.mark.parametrize("kind", [fault.kind for fault in FAULTS])
def test_each_fault_is_found_in_time_and_the_run_goes_on(kind: str, killed_and_stopped: Verdict) -> None:
    (injection,) = [each for each in killed_and_stopped.injections if each.fault.kind == kind]
    assert kind == "driver killed" or injection.detected < NOTICED + ENDED  # a new driver finds nothing out
    assert kind == "executor stopped" or injection.recovered is not None  # nothing was left to train


def test_all_of_them_together_change_no_bit_of_the_weights(killed_and_stopped: Verdict, bench: Scenario) -> None:
    assert_nothing_was_lost(killed_and_stopped, log_of(bench, "killed and stopped"))
    assert killed_and_stopped.identical


def test_training_notices_neither_a_full_disk_nor_a_killed_mlflow(bench: Scenario) -> None:
    runs = bench.folder.parent / "outages" / "runs"
    runs.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(runs)]
    mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        verdict = disturbed(bench, "outages", [Fault("MLflow killed", STEP), Fault("disk full", STEP + 40)])
    finally:
        if mounted:
            subprocess.run(["umount", str(runs)], check=True)
    log = log_of(bench, "outages")
    assert_nothing_was_lost(verdict, log)
    assert verdict.identical
    assert [injection.fault.kind for injection in verdict.injections] == ["MLflow killed", "disk full"]
    assert "another attempt" not in log


def test_a_run_goes_on_with_the_ranks_that_are_left_and_grows_back(bench: Scenario) -> None:
    settings = {"num_ranks": {"min": 1, "max": 2}, "slot_timeout": 3}
    scenario = replace(bench, cluster_settings=settings, pause=0.1)
    verdict = disturbed(scenario, "elastic", [Fault("worker lost", STEP)])
    log = log_of(bench, "elastic")
    assert_nothing_was_lost(verdict, log)
    assert "going on with 1 ranks instead of 2" in log
    assert "slots have come back" in log
