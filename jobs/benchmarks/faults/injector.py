"""The faults that are injected into a run, and how long it takes to notice them and to recover."""

import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.faults.network import newest_call
from benchmarks.faults.run_files import RunFiles
from benchmarks.mlflow_server import Server
from benchmarks.standalone import StandaloneCluster, numbered_threads

__all__ = ["KINDS", "LETTING_GO", "PATIENCE", "SILENCE", "Fault", "Injection", "Injector"]

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
WARNED = "Training goes on"  # and when it cannot write
PATIENCE = 240.0  # seconds; a run that has not moved for so long is lost
LETTING_GO = 15.0  # seconds in which all processes of an attempt have to be gone, and those of a run
SILENCE = 5.0  # seconds after which a rank that says nothing is given up


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


class Injector:
    """Injects faults into a run; ``submit`` starts another driver in place of one that was killed."""

    def __init__(
        self,
        cluster: StandaloneCluster,
        server: Server,
        files: RunFiles,
        *,
        submit: Callable[[], subprocess.Popen[bytes]],
        seed: int,
    ) -> None:
        self._cluster, self._server, self._files, self._submit = cluster, server, files, submit
        self._chance = random.Random(seed)

    def inject(self, fault: Fault, driver: subprocess.Popen[bytes]) -> tuple[Injection, subprocess.Popen[bytes]]:
        """Inject a fault, and wait for what it is to bring about; returns the driver of the run from then on."""
        match fault.kind:
            case "MLflow killed":
                self._restart_server()
                return Injection(fault, None, None), driver
            case "driver killed":
                return self._kill_driver(fault, driver)
            case "disk full":
                return Injection(fault, self._fill_disk(driver), None), driver
            case "rank starved":
                starve(self._chance.choice(self._ranks()), 1.5 * SILENCE)
                return Injection(fault, None, None), driver
            case "executor decommissioned" | "host preempted":
                return self._give_notice(fault, driver), driver
            case _:
                return self._signal(fault, driver), driver

    def _restart_server(self) -> None:
        self._server.kill()
        time.sleep(self._chance.uniform(0.5, 2.0))
        self._server.start()

    def _kill_driver(self, fault: Fault, driver: subprocess.Popen[bytes]) -> tuple[Injection, subprocess.Popen[bytes]]:
        attempt, threads, started = self._attempt(), _threads(self._ranks()), time.monotonic()
        for process in psutil.Process(driver.pid).children(recursive=True):
            process.kill()
        driver.wait()
        gone = self._until_gone(threads, None, started)
        self._server.wait()  # a new driver does not start without it
        driver = self._submit()
        return Injection(fault, None, self._until_attempt(attempt, driver, started), gone), driver

    def _fill_disk(self, driver: subprocess.Popen[bytes]) -> float | None:
        warnings, started = self._files.told(WARNED), time.monotonic()
        with full_disk(self._files.runs):
            return self._until(lambda: self._files.told(WARNED) > warnings, driver, started)

    def _give_notice(self, fault: Fault, driver: subprocess.Popen[bytes]) -> Injection:
        attempt, threads, started = self._attempt(), _threads(self._ranks()), time.monotonic()
        warned = self._files.told(DEPARTURE)
        if fault.kind == "host preempted":
            self._files.notice.touch()
        else:
            self._chance.choice(self._cluster.find("executor")).send_signal(signal.SIGPWR)
        detected = self._until(lambda: self._files.told(DEPARTURE) > warned, driver, started)
        gone = self._until_gone(threads, None, started)
        self._files.notice.unlink(missing_ok=True)
        return Injection(fault, detected, self._until_attempt(attempt, driver, started), gone)

    def _signal(self, fault: Fault, driver: subprocess.Popen[bytes]) -> Injection:
        """Kill or stop a process; a worker is started again."""
        told, attempt, ranks = self._files.told(ATTEMPT), self._attempt(), self._ranks()
        threads = _threads(ranks)
        what, how = fault.kind.split()
        victim = self._chance.choice(ranks if what == "rank" else self._cluster.find(what))
        again = (victim.cmdline(), victim.environ()) if what == "worker" else None
        started = time.monotonic()
        victim.send_signal(signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
        detected = self._until(lambda: self._files.told(ATTEMPT) > told, driver, started)
        suspicious = SILENCE if how == "stopped" else 0.0
        ended = None if detected is None else self._until_gone(threads, victim, started + suspicious)
        if how == "lost":  # the run has to go on without it
            self._until_attempt(attempt, driver, started)
        if again:
            with (self._files.folder / "worker.log").open("ab") as output:
                subprocess.Popen(again[0], env=again[1], stdout=output, stderr=output)
        return Injection(fault, detected, self._until_attempt(attempt, driver, started), ended)

    def _ranks(self) -> list[psutil.Process]:
        return list(self._cluster.ranks().values())

    def _attempt(self) -> str:
        return newest_call(self._files.notes)[0]

    def _until_gone(self, ranks: Sequence[Path], victim: psutil.Process | None, started: float) -> float:
        """Seconds until no rank of an attempt is left, and nothing of what was killed or stopped."""
        while (
            any(rank.exists() for rank in ranks) or (victim and _is_alive(victim))
        ) and time.monotonic() < started + PATIENCE:
            time.sleep(0.02)
        return time.monotonic() - started

    def _until_attempt(self, before: str, driver: subprocess.Popen[bytes], started: float) -> float | None:
        return self._until(lambda: newest_call(self._files.notes)[0] != before, driver, started)

    def _until(self, happened: Any, driver: subprocess.Popen[bytes], started: float) -> float | None:
        """Seconds until something happens; None if the driver ends before, or it takes minutes."""
        while time.monotonic() < started + PATIENCE and driver.poll() is None:
            if happened():
                return time.monotonic() - started
            time.sleep(0.02)
        return None


def _threads(ranks: Sequence[psutil.Process]) -> list[Path]:
    """The files that are there as long as the ranks' threads are."""
    return [thread for process in ranks for thread in numbered_threads(process).values()]


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
