"""Set sparkdl up: an environment with a stack's pinned packages, Horovod built once, and Java where there is none.

``install.py`` makes the classic stack, ``install.py current`` the current one. Runs under any ``python3`` and needs
nothing but the standard library. Does nothing when nothing changed since the last time, and goes on where it stopped
when it was interrupted.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import checks
import horovod_wheel
import sharing
from stacks import CLASSIC, SETUP, STACKS, Stack
from steps import CACHE, SetupError, disk_full, kept_open, run, say, stop_everything

COMPILE = "\n".join(
    [
        "import compileall, re, sys, sysconfig",
        "tests = '.*/tests?/|torch/testing/_internal/'",
        "others = 'databricks/|fontTools/|mypy|networkx/|pyspark/pandas/|sklearn/|sympy/physics/'",
        "scipy = r'scipy/(?!_lib|sparse)\\w+/'",
        "unused = re.compile(f'.*site-packages/({tests}|{others}|{scipy})')",
        "for folder in [sysconfig.get_path('purelib'), sys.argv[1]]:",
        "    compileall.compile_dir(folder, quiet=1, workers=0, rx=unused)",
    ]
)
"""Once, on all cores, and not left to the first import: where PYTHONDONTWRITEBYTECODE is set, as in many containers,
each process would compile PyTorch and MLflow again, seconds that every rank waits. pip itself uses one core for it, and
does tests and others that no job imports as well. A file in the syntax of a newer Python is passed over."""

BUILDING = "building-"
"""What a folder in the environment is called while Horovod is built in it: with torch in it, it takes the same disk."""


def main() -> int:
    """Set up if anything changed; every problem is one line on stderr and exit code 1."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is not signal.SIG_IGN:  # as under nohup
            signal.signal(ending, signal.default_int_handler)
    stack = STACKS[sys.argv[1]] if len(sys.argv) > 1 else CLASSIC
    try:
        python = checks.find_python()
        if sys.version_info[:2] != checks.PYTHON:
            os.execv(python, [python, *sys.argv])
        with_java = checks.find_java_17(os.environ) is None
        with _only_one():
            remember_gpus(stack.stamp)
            if not up_to_date(stack, with_java):
                install(stack, python, with_java)
    except KeyboardInterrupt:
        stop_everything()
        print("\nset-up interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    except (SetupError, OSError) as error:
        stop_everything()
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        print(f"set-up failed: {disk_full() if full else error}", file=sys.stderr)
        return 1
    return 0


def install(stack: Stack, python: str, with_java: bool) -> None:
    """The whole set-up; each part is quick when an earlier run finished it."""
    log, pip = stack.logs / "setup.log", stack.pip
    say(f"setting up {stack.venv} with Python {platform.python_version()} (log: {log})")
    checks.check_venv()
    to_build = stack.with_horovod and horovod_wheel.cached(f"{read_lock(stack.lock)['torch']}*") is None
    if to_build or not finished_once(stack):
        checks.check_disk(checks.places(stack.venv, CACHE))
    if to_build:
        checks.check_compiler(os.environ)
    for old in (log, _horovod_log(stack)):
        old.unlink(missing_ok=True)

    if not _works(stack):
        run([python, "-m", "venv", "--clear", stack.venv], doing="making the virtual environment", log=log)
    write_stamp(stack.stamp, "unfinished")
    forget_half_installed(stack.venv)
    # The one that comes with Python 3.11 takes three times as long to find the lock's packages.
    run([*pip, "install", "--constraint", stack.lock, "--upgrade", "pip"], doing="bringing pip up to date", log=log)

    # Wheels that are built here stay uncompressed: Spark's is nearly all jars, which only cost time to compress again.
    add: list[str | Path] = [*pip, "install", "--no-compile", "--config-settings=--build-option=--compression=stored"]
    with TemporaryDirectory(prefix=BUILDING, dir=stack.venv) as work, ThreadPoolExecutor(max_workers=1) as pool:
        try:
            # torch comes with what it asks for: which packages these are depends on the build that the index offers.
            say("installing torch")
            first: list[str | Path] = ["torch", *horovod_wheel.NEEDED_TO_BUILD]  # setuptools builds Spark's, too
            run([*add, "--constraint", stack.lock, *first], doing="installing torch", log=log)
            torch = horovod_wheel.installed_torch(stack.python)
            wheel = horovod_wheel.cached(torch) if stack.with_horovod else None
            building = None
            if stack.with_horovod and wheel is None:
                say("building Horovod beside the other packages, once for this user and torch (some minutes)")
                ready = horovod_wheel.build_environment(stack.venv, Path(work) / "venv", log=_horovod_log(stack))
                where = {"work": Path(work), "log": _horovod_log(stack)}
                building = pool.submit(horovod_wheel.build, ready, stack.pip, **where)
            requirements = [stack.lock, SETUP / "java.txt"] if with_java else [stack.lock]
            say(f"installing {len(read_lock(stack.lock))} packages{' and Java 17' if with_java else ''}")
            listed: list[str | Path] = [part for path in requirements for part in ("--requirement", path)]
            run([*add, "--no-deps", "--no-build-isolation", *listed], doing="installing packages", log=log)
            say("compiling them to bytecode")
            # Nice to Horovod's build, whose end is for one core alone.
            compiling: list[str | Path] = ["nice", stack.python, "-c", COMPILE, SETUP.parent / "sparkdl"]
            run(compiling, doing="compiling to bytecode", log=log)
            wheel = building.result() if building else wheel
        except BaseException:
            stop_everything()
            raise
    if wheel is not None:
        say("installing Horovod")
        # Compiled by pip: it comes after all others were.
        run([*pip, "install", "--no-deps", "--force-reinstall", wheel], doing="installing Horovod", log=log)
    say("installing sparkdl")
    run([*add, "--no-deps", "--no-build-isolation", "--editable", SETUP.parent], doing="installing sparkdl", log=log)
    for other in STACKS.values():
        if other is not stack and (freed := sharing.share(stack.venv, other.venv)):
            say(f"{freed / checks.GIGABYTE:.1f} GB of it are links to the same files in {other.venv}")
    say("checking what is installed")
    run([*pip, "check"], doing="checking the packages", log=log)
    run([stack.python, "-c", stack.proof], doing="importing what was installed", log=log)
    write_stamp(stack.stamp, digest(with_java))
    say("set up")


def read_lock(path: Path) -> dict[str, str]:
    """The pinned version of every package in a lock."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def up_to_date(stack: Stack, with_java: bool) -> bool:
    """Whether the last set-up finished, here, and nothing that decides its outcome changed since."""
    return _stamped(stack) and stack.stamp.read_text().split()[:1] == [digest(with_java)]


def finished_once(stack: Stack) -> bool:
    """Whether nearly everything is installed already, so that little is left to write."""
    return _stamped(stack) and not stack.stamp.read_text().startswith("unfinished")


def write_stamp(stamp: Path, state: str) -> None:
    """Note how far set-up got, and what Horovod was built for."""
    stamp.write_text(f"{state} {os.environ.get('HOROVOD_GPU_OPERATIONS', '')}")


def remember_gpus(stamp: Path) -> None:
    """Build for GPUs if the last set-up did; an empty ``HOROVOD_GPU_OPERATIONS`` goes back to CPUs."""
    _, _, operations = (stamp.read_text() if stamp.exists() else "").partition(" ")
    if not os.environ.setdefault("HOROVOD_GPU_OPERATIONS", operations):
        del os.environ["HOROVOD_GPU_OPERATIONS"]


def digest(with_java: bool, setup: Path = SETUP) -> str:
    """What decides the outcome: the set-up's files, the project's metadata, Python, Java, the place, build options."""
    content = hashlib.sha256()
    for path in sorted(
        [*setup.glob("*.py"), *setup.glob("*.txt"), *setup.glob("patches/*"), setup.parent / "pyproject.toml"]
    ):
        content.update(path.name.encode() + b"\0" + path.read_bytes())
    facts = [platform.python_version(), with_java, setup.parent, os.environ.get("HOROVOD_GPU_OPERATIONS")]
    content.update(repr([str(fact) for fact in facts]).encode())
    return content.hexdigest()


def forget_half_installed(venv: Path) -> None:
    """Remove what an interrupted set-up left of a build, and of packages, whose ``RECORD`` pip writes last."""
    for building in venv.glob(f"{BUILDING}*"):
        shutil.rmtree(building)
    for metadata in venv.glob("lib/python*/site-packages/*.dist-info"):
        if not (metadata / "RECORD").exists():
            shutil.rmtree(metadata)


def _stamped(stack: Stack) -> bool:
    return stack.stamp.exists() and stack.python.exists()


def _works(stack: Stack) -> bool:
    """Whether the environment was finished and stands where it was made (its scripts name the place)."""
    activate = stack.venv / "bin" / "activate"
    if not activate.exists() or str(stack.venv) not in activate.read_text():
        return False
    if not stack.python.exists():  # a link to a Python that is gone
        return False
    return subprocess.run([*map(str, stack.pip), "--version"], capture_output=True, check=False).returncode == 0


def _horovod_log(stack: Stack) -> Path:
    return stack.logs / "horovod.log"


class _only_one:  # noqa: N801 - used as `with _only_one():`
    """Two set-ups of one checkout take turns."""

    def __enter__(self) -> None:
        self.folder = os.open(SETUP, os.O_RDONLY)
        kept_open.append(self.folder)
        try:
            fcntl.flock(self.folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout")
            fcntl.flock(self.folder, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        kept_open.remove(self.folder)
        os.close(self.folder)


if __name__ == "__main__":
    sys.exit(main())
