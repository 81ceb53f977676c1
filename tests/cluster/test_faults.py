"""Real runs on a real cluster whose processes are killed and stopped: each ends as if nothing had happened."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkdl.benchmarks.faults.run import disturbed, fault_bench
from sparkdl.benchmarks.faults.scenario import Fault, Scenario, Verdict

STEP = 45  # five steps after a checkpoint, in the first epoch


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    with fault_bench(tmp_path_factory.mktemp("faults")) as bench:
        yield bench


def assert_nothing_was_lost(verdict: Verdict, bench: Scenario, name: str) -> None:
    log = (bench.folder.parent / name / "driver.log").read_text(errors="replace")
    assert verdict.finished, log[-8000:]
    assert (verdict.misused_rows, verdict.curve_errors, verdict.left_over) == (0, 0, 0), log[-8000:]


@pytest.mark.parametrize(
    "kind", ["rank killed", "rank stopped", "executor killed", "executor stopped", "worker killed", "driver killed"]
)
def test_the_weights_are_the_same_to_the_last_bit(kind: str, bench: Scenario) -> None:
    verdict = disturbed(bench, kind, [Fault(kind, STEP)])
    assert_nothing_was_lost(verdict, bench, kind)
    assert verdict.identical
    (injection,) = verdict.injections
    assert injection.recovered is not None


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
    assert_nothing_was_lost(verdict, bench, "outages")
    assert verdict.identical
    assert all(injection.recovered is None for injection in verdict.injections)  # there was no other attempt


def test_a_run_goes_on_with_the_ranks_that_are_left_and_grows_back(bench: Scenario) -> None:
    settings = {"num_ranks": {"min": 1, "max": 2}, "slot_timeout": 3}
    scenario = replace(bench, cluster_settings=settings, pause=0.1)
    verdict = disturbed(scenario, "elastic", [Fault("worker lost", STEP)])
    assert_nothing_was_lost(verdict, bench, "elastic")
    log = (Path(bench.folder.parent) / "elastic" / "driver.log").read_text(errors="replace")
    assert "going on with 1 ranks instead of 2" in log
    assert "slots have come back" in log
