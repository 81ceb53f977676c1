"""One training run on a real cluster, the faults that are injected into it, and what became of it."""

import json
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

import sparkdl
from benchmarks.faults.network import newest_call, uses_of_rows
from benchmarks.faults.program import __file__ as program_file
from benchmarks.faults.server import Server
from benchmarks.standalone import StandaloneCluster, numbered_threads
from sparkdl.training.checkpoints.checkpoint import load_manifest, load_shard, load_shared
from sparkdl.training.checkpoints.checkpoint_folder import latest

__all__ = ["KINDS", "LETTING_GO", "SILENCE", "Fault", "Injection", "Scenario", "Verdict"]

KINDS = (
    "rank killed",
    "rank stopped",
    "executor killed",
    "executor stopped",
    "worker killed",
    "driver killed",
    "MLflow killed",
    "executor decommissioned",
    "host preempted",
)
"""What the benchmark chooses from. Of the last two there is notice: a signal tells Spark, and a file tells ranks. There
are three more: ``worker lost`` is killed and comes back when the run has gone on without it, ``disk full`` fills the
file system of the checkpoints until the driver has said so, and ``rank starved`` leaves a rank a twentieth of its time
for longer than it may be silent."""
ATTEMPT = "another attempt goes on"  # what the driver says when it has found out
DEPARTURE = "is about to be taken away"  # and when it has notice
PATIENCE = 240.0  # seconds; a run that has not moved for so long is lost
LETTING_GO = 15.0  # seconds in which all processes of an attempt have to be gone, and those of a run
SILENCE = 5.0  # seconds after which a rank that says nothing is given up
EPOCHS, STEPS_PER_EPOCH = 4, 50


@dataclass(frozen=True)
class Fault:
    """What is done to the run, and when."""

    kind: str
    step: int


@dataclass(frozen=True)
class Injection:
    """A fault that was injected. Times in seconds; None where there was nothing to find out or to recover."""

    fault: Fault
    detected: float | None
    recovered: float | None
    ended: float | None = None
    """Until no rank of the attempt was left, and not the victim, from the moment on when silence became suspicious."""


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
        (self.folder / "notes").mkdir()
        plan = self._write_plan()
        driver = self._submit(plan)
        injections = []
        chance = random.Random(seed)
        for fault in sorted(faults, key=lambda fault: fault.step):
            if not self._wait_for_step(fault.step, driver):
                break
            injection, driver = self._inject(fault, driver, plan, chance)
            injections.append(injection)
        try:
            finished = driver.wait(PATIENCE) == 0
        except subprocess.TimeoutExpired:
            finished = False
            driver.kill()
        return self._judge(injections, finished)

    def state(self) -> dict[str, Any]:
        """What the run's last checkpoint holds."""
        (run,) = self.runs.iterdir()
        manifest = load_manifest(str(latest(str(run))))
        shards = [load_shard(str(run), shard) for shard in manifest.shards]
        return {**load_shared(str(run), manifest), "ranks": shards, "step": manifest.step}

    @property
    def log(self) -> Path:
        """What the driver says."""
        return self.folder / "driver.log"

    @property
    def runs(self) -> Path:
        """Where the run keeps its checkpoints."""
        return self.folder / "runs"

    @property
    def spool(self) -> Path:
        """Where records wait for MLflow."""
        return self.folder / "spool"

    @property
    def _notice(self) -> Path:
        """The file that is made when the host is about to be taken away."""
        return self.folder / "notice"

    def _write_plan(self) -> Path:
        cluster = {
            "num_ranks": 2,
            "max_restarts": 10,  # faults may come faster than checkpoints
            "restart_seconds": 0.1,
            "silence_timeout": SILENCE,
            "stall_timeout": 60,
            "slot_timeout": 120,
            "preemption_notice": str(self._notice),
        }
        train: dict[str, Any] = {
            "epochs": EPOCHS,
            "batch_size": self.rows // (2 * STEPS_PER_EPOCH),
            "learning_rate": 0.01,
        }
        train |= {"run_dir": str(self.runs), "checkpoint_steps": 10}
        plan = {
            "dataset": self.dataset,
            "notes": str(self.folder / "notes"),
            "pause": self.pause,
            "train": train,
            "cluster": cluster | self.cluster_settings,
            "tracking": {"uri": self.server.uri, "experiment": "faults", "spool": str(self.spool)},
            "result": str(self.folder / "result.json"),
        }
        path = self.folder / "plan.json"
        path.write_text(json.dumps(plan))
        return path

    def _submit(self, plan: Path) -> subprocess.Popen[bytes]:
        options = ["--conf", "spark.python.daemon.module=sparkdl.daemon", "--conf", "spark.cores.max=2"]
        options += ["--conf", "spark.decommission.enabled=true"]
        return self.cluster.start(program_file, str(plan), log=self.log, options=options)

    def _wait_for_step(self, step: int, driver: subprocess.Popen[bytes]) -> bool:
        """Whether the run has come to this step; it has not when it ends, or stands still for minutes."""
        deadline, before = time.monotonic() + PATIENCE, ("", -1)
        while driver.poll() is None and time.monotonic() < deadline:
            now = newest_call(self.folder / "notes")
            if now[1] >= step and len(self.cluster.ranks()) == 2:
                return True
            if now != before:
                deadline, before = time.monotonic() + PATIENCE, now
            time.sleep(0.02)
        return False

    def _inject(
        self, fault: Fault, driver: subprocess.Popen[bytes], plan: Path, chance: random.Random
    ) -> tuple[Injection, subprocess.Popen[bytes]]:
        told, (attempt, _) = self._told(ATTEMPT), newest_call(self.folder / "notes")
        attempted = list(self.cluster.ranks().values())
        threads = [thread for process in attempted for thread in numbered_threads(process).values()]
        started = time.monotonic()
        if fault.kind == "MLflow killed":
            self.server.kill()
            time.sleep(chance.uniform(0.5, 2.0))
            self.server.start()
            return Injection(fault, None, None), driver
        if fault.kind == "driver killed":
            for process in psutil.Process(driver.pid).children(recursive=True):
                process.kill()
            driver.wait()
            gone = self._until_gone(threads, None, started)
            self.server.wait()  # a new driver does not start without it
            driver = self._submit(plan)
            return Injection(fault, None, self._until_attempt(attempt, driver, started), gone), driver
        if fault.kind == "disk full":
            warnings = self._told("Training goes on")
            with full_disk(self.runs):
                detected = self._until(lambda: self._told("Training goes on") > warnings, driver, started)
            return Injection(fault, detected, None), driver
        if fault.kind == "rank starved":
            starve(chance.choice(attempted), 1.5 * SILENCE)
            return Injection(fault, None, None), driver
        if fault.kind in ("executor decommissioned", "host preempted"):
            warned = self._told(DEPARTURE)
            if fault.kind == "host preempted":
                self._notice.touch()
            else:
                chance.choice(self.cluster.find("executor")).send_signal(signal.SIGPWR)
            detected = self._until(lambda: self._told(DEPARTURE) > warned, driver, started)
            gone = self._until_gone(threads, None, started)
            self._notice.unlink(missing_ok=True)
            return Injection(fault, detected, self._until_attempt(attempt, driver, started), gone), driver
        what, how = fault.kind.split()
        victims = attempted if what == "rank" else self.cluster.find(what)
        victim = chance.choice(victims)
        again = (victim.cmdline(), victim.environ()) if what == "worker" else None
        victim.send_signal(signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
        detected = self._until(lambda: self._told(ATTEMPT) > told, driver, started)
        suspicious = SILENCE if how == "stopped" else 0.0
        ended = None if detected is None else self._until_gone(threads, victim, started + suspicious)
        if how == "lost":  # the run has to go on without it
            self._until_attempt(attempt, driver, started)
        if again:
            with (self.folder / "worker.log").open("ab") as output:
                subprocess.Popen(again[0], env=again[1], stdout=output, stderr=output)
        return Injection(fault, detected, self._until_attempt(attempt, driver, started), ended), driver

    def _until_gone(self, ranks: Sequence[Path], victim: psutil.Process | None, started: float) -> float:
        """Seconds until no rank of an attempt is left, and nothing of what was killed or stopped."""
        while (
            any(rank.exists() for rank in ranks) or (victim and _is_alive(victim))
        ) and time.monotonic() < started + PATIENCE:
            time.sleep(0.02)
        return time.monotonic() - started

    def _until_attempt(self, before: str, driver: subprocess.Popen[bytes], started: float) -> float | None:
        return self._until(lambda: newest_call(self.folder / "notes")[0] != before, driver, started)

    def _until(self, happened: Any, driver: subprocess.Popen[bytes], started: float) -> float | None:
        """Seconds until something happens; None if the driver ends before, or it takes minutes."""
        while time.monotonic() < started + PATIENCE and driver.poll() is None:
            if happened():
                return time.monotonic() - started
            time.sleep(0.02)
        return None

    def _told(self, text: str) -> int:
        """How often the driver has said so."""
        return self.log.read_text(errors="replace").count(text) if self.log.exists() else 0

    def _judge(self, injections: Sequence[Injection], finished: bool) -> Verdict:
        left_over = self._left_over()
        if not finished:
            return Verdict(injections, False, False, self.rows, 0, 0, left_over)
        uses = uses_of_rows(self.folder / "notes")
        misused = sum(uses[row] != EPOCHS for row in range(self.rows))
        run_id = json.loads((self.folder / "result.json").read_text())["run_id"]
        self.server.wait()
        before = len(self.server.steps(run_id))
        tracking = sparkdl.Tracking(uri=self.server.uri, spool=str(self.spool))
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


def _is_alive(process: psutil.Process) -> bool:
    """Whether it has not ended; somebody may still have to bury it."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def starve(process: psutil.Process, seconds: float) -> None:
    """Let a process run for a twentieth of each second."""
    deadline = time.monotonic() + seconds
    with suppress(psutil.NoSuchProcess):
        while time.monotonic() < deadline:
            process.suspend()
            time.sleep(0.95)
            process.resume()
            time.sleep(0.05)


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """While this lasts, nothing can be written below a folder, which is where a small file system was mounted.

    Where nobody may mount one, the folder is closed instead: another reason, and the same to whoever writes.
    """
    if folder.is_mount():
        ballast = folder / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        try:
            yield
        finally:
            ballast.unlink()
        return
    closed = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
    for path in closed:
        path.chmod(0o500)
    try:
        yield
    finally:
        for path in closed:
            path.chmod(0o700)
