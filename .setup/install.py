"""Set sparkdl up: ``.venv`` with the pinned packages, Horovod built once, and Java where there is none.

Runs under any ``python3`` and needs nothing but the standard library. Does nothing when nothing changed since the last
time, and goes on where it stopped when it was interrupted.
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

import checks
import horovod_wheel
from steps import CACHE, SetupError, disk_full, kept_open, run, say, stop_everything

SETUP = Path(__file__).resolve().parent
ROOT = SETUP.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PIP: list[str | Path] = [PYTHON, "-m", "pip"]
STAMP = VENV / "set-up"
LOCK = SETUP / "requirements.txt"
LOGS = CACHE / "logs" / hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]
"""Each checkout's own: two of them may be set up at once."""
LOG = LOGS / "setup.log"
HOROVOD_LOG = LOGS / "horovod.log"
PROOF = "import horovod.torch, mlflow, petastorm.unischema, pyspark.sql, sparkdl; assert horovod.torch.gloo_built()"
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


def main() -> int:
    """Set up if anything changed; every problem is one line on stderr and exit code 1."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) is not signal.SIG_IGN:  # as under nohup
            signal.signal(ending, signal.default_int_handler)
    try:
        python = checks.find_python()
        if sys.version_info[:2] != checks.PYTHON:
            os.execv(python, [python, __file__])
        with_java = checks.find_java_17(os.environ) is None
        with _only_one():
            remember_gpus(STAMP)
            if not up_to_date(with_java):
                install(python, with_java)
    except KeyboardInterrupt:
        stop_everything()
        print("\nset-up interrupted; `make setup` goes on from here", file=sys.stderr)
        return 130
    except (SetupError, OSError) as error:
        stop_everything()
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        print(f"set-up failed: {disk_full() if full else error}", file=sys.stderr)
        return 1
    return 0


def install(python: str, with_java: bool) -> None:
    """The whole set-up; each part is quick when an earlier run finished it."""
    say(f"setting up {VENV} with Python {platform.python_version()} (log: {LOG})")
    torch = f"{read_lock(LOCK)['torch']}*"
    checks.check_venv()
    to_build = horovod_wheel.cached(torch) is None
    if to_build or not finished_once():
        checks.check_disk(checks.places(VENV, CACHE))
    if to_build:
        checks.check_compiler(os.environ)
    for log in (LOG, HOROVOD_LOG):
        log.unlink(missing_ok=True)

    if not _works(VENV):
        run([python, "-m", "venv", "--clear", VENV], doing="making the virtual environment", log=LOG)
    write_stamp(STAMP, "unfinished")
    forget_half_installed(VENV)
    # The one that comes with Python 3.11 takes three times as long to find the lock's packages.
    run([*PIP, "install", "--constraint", LOCK, "--upgrade", "pip"], doing="bringing pip up to date", log=LOG)

    # Wheels that are built here stay uncompressed: Spark's is nearly all jars, which only cost time to compress again.
    pip: list[str | Path] = [*PIP, "install", "--no-compile", "--config-settings=--build-option=--compression=stored"]
    with ThreadPoolExecutor(max_workers=1) as pool:
        try:
            wheel = pool.submit(_horovod, python, torch)
            # torch comes with what it asks for: which packages these are depends on the build that the index offers.
            say("installing torch")
            run(
                [*pip, "--constraint", LOCK, "torch", *horovod_wheel.NEEDED_TO_BUILD], doing="installing torch", log=LOG
            )
            requirements = [LOCK, SETUP / "java.txt"] if with_java else [LOCK]
            say(f"installing {len(read_lock(LOCK))} packages{' and Java 17' if with_java else ''}")
            listed: list[str | Path] = [part for path in requirements for part in ("--requirement", path)]
            run([*pip, "--no-deps", "--no-build-isolation", *listed], doing="installing packages", log=LOG)
            say("compiling them to bytecode")
            # Nice to Horovod's build, whose end is for one core alone.
            run(["nice", PYTHON, "-c", COMPILE, ROOT / "sparkdl"], doing="compiling to bytecode", log=LOG)
            wheel.result()
            # Nearly always the same wheel; the cache may hold one for another build of this torch only.
            horovod = _horovod(python, horovod_wheel.installed_torch(PYTHON))
        except BaseException:
            stop_everything()
            raise
    say("installing Horovod and sparkdl")
    # Compiled by pip: it comes after all others were.
    run([*PIP, "install", "--no-deps", "--force-reinstall", horovod], doing="installing Horovod", log=LOG)
    run([*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT], doing="installing sparkdl", log=LOG)
    say("checking what is installed")
    run([*PIP, "check"], doing="checking the packages", log=LOG)
    run([PYTHON, "-c", PROOF], doing="importing what was installed", log=LOG)
    write_stamp(STAMP, digest(with_java))
    say("set up")


def read_lock(path: Path) -> dict[str, str]:
    """The pinned version of every package in a lock."""
    lines = [line.strip() for line in path.read_text().splitlines()]
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def up_to_date(with_java: bool) -> bool:
    """Whether the last set-up finished, here, and nothing that decides its outcome changed since."""
    return STAMP.exists() and PYTHON.exists() and STAMP.read_text().split()[:1] == [digest(with_java)]


def finished_once() -> bool:
    """Whether nearly everything is installed already, so that little is left to write."""
    return STAMP.exists() and PYTHON.exists() and not STAMP.read_text().startswith("unfinished")


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
    """Let pip see packages that it was interrupted in as missing: it writes ``RECORD`` last."""
    for metadata in venv.glob("lib/python*/site-packages/*.dist-info"):
        if not (metadata / "RECORD").exists():
            shutil.rmtree(metadata)


def _works(venv: Path) -> bool:
    """Whether the environment was finished and stands where it was made (its scripts name the place)."""
    activate = venv / "bin" / "activate"
    if not activate.exists() or str(venv) not in activate.read_text():
        return False
    if not (venv / "bin" / "python").exists():  # a link to a Python that is gone
        return False
    return subprocess.run([*map(str, PIP), "--version"], capture_output=True, check=False).returncode == 0


def _horovod(python: str, torch: str) -> Path:
    """The wheel for a version of torch from the cache, or a new one for the torch of the lock."""
    found = horovod_wheel.cached(torch)
    if found is not None:
        return found
    say("building Horovod beside it, once for this user and torch (some minutes)")
    return horovod_wheel.build(Path(python), PIP, lock=LOCK, log=HOROVOD_LOG)


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
