"""Steps of the set-up: what a person sees, what the log keeps, and how a failed command becomes one clear line."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["CACHE", "SetupError", "disk_full", "explain", "kept_open", "run", "say", "stop_everything"]

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkdl"
HEARTBEAT = 20.0
"""Seconds after which a command that is still running says so."""

kept_open: list[int] = []
"""Files that commands keep open: a lock lasts as long as the last of them, whatever ends the set-up itself."""

_started = time.monotonic()
_running: list[subprocess.Popen[bytes]] = []
_stopping = threading.Event()


class SetupError(Exception):
    """A problem that a person can solve; the message is one line that says how."""


def say(text: str) -> None:
    """Print a line with the seconds since the set-up began."""
    print(f"[{time.monotonic() - _started:4.0f} s] {text}", flush=True)


def run(command: Sequence[str | Path], *, doing: str, log: Path, env: Mapping[str, str] | None = None) -> None:
    """Run a command with its output in ``log``; a failure raises :class:`SetupError` with the line that explains it."""
    if _stopping.is_set():
        raise SetupError(f"stopped before {doing}")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        output.write(f"\n$ {' '.join(map(str, command))}\n".encode())
        output.flush()
        start = output.tell()
        # A group of its own: Ctrl-C then reaches this process alone, which ends the whole tree below. Not a session,
        # between which Linux divides the cores whatever `nice` says.
        process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env) if env is not None else None,
            process_group=0,
            pass_fds=kept_open,
        )
        _running.append(process)
    while process.returncode is None:
        try:
            process.wait(HEARTBEAT)
        except subprocess.TimeoutExpired:
            say(f"  still {doing}{_percent(_tail(log, start))}")
    if process.returncode != 0:
        raise SetupError(explain(_tail(log, start), doing=doing, code=process.returncode, log=log))


def stop_everything() -> None:
    """End the commands that are still running, with their children, and start no more."""
    _stopping.set()
    for process in _running:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def explain(output: str, *, doing: str, code: int, log: Path) -> str:
    """The one line that says why a command failed and what to do."""
    if os.strerror(errno.ENOSPC) in output:
        return disk_full()
    if re.search(r"NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|name resolution", output):
        return f"no answer from the package index while {doing}: check the network or proxy, then try again"
    if "Killed signal terminated program" in output:
        return f"out of memory while {doing}: free some, or set MAKEFLAGS=-j1, then try again"
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    # A compiler's or CMake's first complaint is the cause; of pip's, the last one sums up.
    first = re.search(r"^.*: (?:fatal )?error: .*$|^\s*CMake Error.*:\s+.*$", output, re.MULTILINE)
    errors = [line for line in lines if re.match(r"(ERROR|error):? ", line)]
    reason = " ".join(first.group().split()) if first else (errors or lines or ["no output"])[-1]
    return f"{doing} failed (exit code {code}): {reason[:300]} - the whole story is in {log}"


def disk_full() -> str:
    """The line for a disk that ran full on the way."""
    return "the disk is full: free some space, then try again; set-up goes on from where it stopped"


def _tail(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - 1_000_000))
        return file.read().decode(errors="replace")


def _percent(output: str) -> str:
    found = re.findall(r"\[ *(\d+)%\]", output)
    return f" ({found[-1]}%)" if found else ""
