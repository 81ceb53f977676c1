"""One training run on a real cluster into which faults are injected, and what became of it."""

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sparkdl
from benchmarks.faults.injector import LETTING_GO, PATIENCE, SILENCE, Fault, Injection, Injector
from benchmarks.faults.network import newest_call, uses_of_rows
from benchmarks.faults.program import __file__ as program_file
from benchmarks.faults.run_files import RunFiles
from benchmarks.mlflow_server import Server
from benchmarks.standalone import StandaloneCluster
from sparkdl.training.checkpoints.checkpoint import load_manifest, load_shard, load_shared
from sparkdl.training.checkpoints.checkpoint_folder import latest

__all__ = ["EPOCHS", "STEPS_PER_EPOCH", "Scenario", "Verdict"]

EPOCHS, STEPS_PER_EPOCH = 4, 50


@dataclass(frozen=True)
class Verdict:
    """What became of a run."""

    injections: Sequence[Injection]
    finished: bool
    identical: bool
    """Whether weights and optimizer are those of the run that was left alone, to the last bit."""
    misused_rows: int
    """Rows that count more or less than once an epoch."""
    curve_errors: int
    """Points that the loss curve in MLflow lacks or has twice, when everything has been delivered."""
    waiting: int
    """Points that were on disk when the run was over, for ``sparkdl sync`` to deliver."""
    left_over: int
    """Processes of the run that are still there when it is over."""


@dataclass
class Scenario:
    """A run, its cluster, and MLflow's server."""

    cluster: StandaloneCluster
    dataset: str
    rows: int
    folder: Path
    server: Server
    cluster_settings: dict[str, Any] = field(default_factory=dict)
    pause: float = 0.04
    """Seconds that a batch takes at least, so that there is time to inject something."""

    def run(self, faults: Sequence[Fault], *, seed: int = 0) -> Verdict:
        """Start the run, inject the faults at their steps, and judge its end."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.files.notes.mkdir()
        plan = self._write_plan()
        driver = self._submit(plan)
        injector = Injector(self.cluster, self.server, self.files, submit=lambda: self._submit(plan), seed=seed)
        injections = []
        for fault in sorted(faults, key=lambda fault: fault.step):
            if not self._wait_for_step(fault.step, driver):
                break
            injection, driver = injector.inject(fault, driver)
            injections.append(injection)
        try:
            finished = driver.wait(PATIENCE) == 0
        except subprocess.TimeoutExpired:
            finished = False
            driver.kill()
        return self._judge(injections, finished)

    def state(self) -> dict[str, Any]:
        """What the run's last checkpoint holds."""
        (run,) = self.files.runs.iterdir()
        manifest = load_manifest(str(latest(str(run))))
        shards = [load_shard(str(run), shard) for shard in manifest.shards]
        return {**load_shared(str(run), manifest), "ranks": shards, "step": manifest.step}

    @property
    def files(self) -> RunFiles:
        """Where the run keeps what it writes."""
        return RunFiles(self.folder)

    def _write_plan(self) -> Path:
        cluster = {
            "num_ranks": 2,
            "max_restarts": 10,  # faults may come faster than checkpoints
            "restart_seconds": 0.1,
            "silence_timeout": SILENCE,
            "stall_timeout": 60,
            "slot_timeout": 120,
            "preemption_notice": str(self.files.notice),
        }
        train: dict[str, Any] = {
            "epochs": EPOCHS,
            "batch_size": self.rows // (2 * STEPS_PER_EPOCH),
            "learning_rate": 0.01,
        }
        train |= {"run_dir": str(self.files.runs), "checkpoint_steps": 10}
        plan = {
            "dataset": self.dataset,
            "notes": str(self.files.notes),
            "pause": self.pause,
            "train": train,
            "cluster": cluster | self.cluster_settings,
            "tracking": {"uri": self.server.uri, "experiment": "faults", "spool": str(self.files.spool)},
            "result": str(self.files.result),
        }
        path = self.folder / "plan.json"
        path.write_text(json.dumps(plan))
        return path

    def _submit(self, plan: Path) -> subprocess.Popen[bytes]:
        options = ["--conf", "spark.python.daemon.module=sparkdl.daemon", "--conf", "spark.cores.max=2"]
        options += ["--conf", "spark.decommission.enabled=true"]
        return self.cluster.start(program_file, str(plan), log=self.files.log, options=options)

    def _wait_for_step(self, step: int, driver: subprocess.Popen[bytes]) -> bool:
        """Whether the run has come to this step; it has not when it ends, or stands still for minutes."""
        deadline, before = time.monotonic() + PATIENCE, ("", -1)
        while driver.poll() is None and time.monotonic() < deadline:
            now = newest_call(self.files.notes)
            if now[1] >= step and len(self.cluster.ranks()) == 2:
                return True
            if now != before:
                deadline, before = time.monotonic() + PATIENCE, now
            time.sleep(0.02)
        return False

    def _judge(self, injections: Sequence[Injection], finished: bool) -> Verdict:
        left_over = self._left_over()
        if not finished:
            return Verdict(injections, False, False, self.rows, 0, 0, left_over)
        uses = uses_of_rows(self.files.notes)
        misused = sum(uses[row] != EPOCHS for row in range(self.rows))
        run_id = json.loads(self.files.result.read_text())["run_id"]
        self.server.wait()
        before = len(self.server.steps(run_id))
        tracking = sparkdl.Tracking(uri=self.server.uri, spool=str(self.files.spool))
        sparkdl.sync(tracking)  # what the end of the run did not wait for
        steps = self.server.steps(run_id)
        expected = self.state()["step"]
        curve_errors = abs(len(steps) - len(set(steps))) + len(set(range(expected)) ^ set(steps))
        return Verdict(injections, True, False, misused, curve_errors, len(steps) - before, left_over)

    def _left_over(self) -> int:
        """Executors, Python workers and drivers that are still there when everybody has had time to end them."""
        deadline = time.monotonic() + LETTING_GO
        while left := [process for role in ("python", "executor", "driver") for process in self.cluster.find(role)]:
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
        for process in left:
            process.kill()
        return len(left)
