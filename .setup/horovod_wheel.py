"""Horovod's wheel: built once from the pinned source release and kept in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from patching import PATCHES, apply
from steps import CACHE, SetupError, run, say

__all__ = ["build", "build_environment", "cached", "installed_torch", "key"]

RELEASE = "horovod-0.28.1"
NEEDED_TO_BUILD = ["numpy", "setuptools", "packaging", "cffi"]
CMAKE = "cmake==4.4.4"
MEMORY_PER_COMPILER = 2 * 2**30
"""Bytes that one compiler process may take with torch's headers."""
FLAGS = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_CPU_OPERATIONS": "GLOO",
    "CXXFLAGS": "-w",  # thousands of warnings about the release's own code
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",  # the release asks for less than CMake 4 knows
}


def key(torch_version: str) -> str:
    """The folder's name for a wheel made for this torch, this Python, this platform, GPUs or not, and in this way."""
    recipe = hashlib.sha256(repr((FLAGS, [patch.read_text() for patch in PATCHES])).encode()).hexdigest()[:8]
    parts = [RELEASE, f"torch-{torch_version}", str(sys.implementation.cache_tag), sysconfig.get_platform(), recipe]
    if os.environ.get("HOROVOD_GPU_OPERATIONS"):
        parts.append(os.environ["HOROVOD_GPU_OPERATIONS"].lower())
    return "-".join(parts)


def cached(torch_version: str) -> Path | None:
    """The wheel that an earlier build left; ``2.13.0*`` finds one for any build of that torch."""
    return next((CACHE / "wheels").glob(f"{key(torch_version)}/{RELEASE}-*.whl"), None)


def build_environment(environment: Path, folder: Path, *, log: Path) -> Path:
    """A copy of an environment that has torch in it; returns its Python. The files are links, and take no space.

    Packages are installed in the first one while Horovod is built, and CMake asks a Python that imports torch, which
    imports what it finds half written. ``folder`` must be on the same disk.
    """
    making: list[str | Path] = [environment / "bin" / "python", "-m", "venv", "--without-pip", "--clear", folder]
    run(making, doing="making Horovod's build environment", log=log)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    original = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    shutil.copytree(original, packages, copy_function=os.link, dirs_exist_ok=True)
    return folder / "bin" / "python"


def build(python: Path, installer: Sequence[str | Path], *, work: Path, log: Path) -> Path:
    """Build the wheel in a folder, with the torch of this Python's environment, and put it into the cache whole."""
    pip: list[str | Path] = [*installer, "--python", python]
    run([*pip, "install", "--no-compile", "--no-deps", CMAKE], doing="installing what builds Horovod", log=log)
    _check_gpu(python)
    source: list[str | Path] = ["--no-binary=horovod", "-d", work, "-r", Path(__file__).with_name("horovod.txt")]
    run(
        [*pip, "download", "--no-deps", "--no-build-isolation", *source],
        doing="downloading Horovod's source",
        log=log,
    )
    shutil.unpack_archive(work / f"{RELEASE}.tar.gz", work)
    for patch in PATCHES:
        apply(patch, work / RELEASE)
    wheel: list[str | Path] = ["--verbose", "--no-deps", "--no-build-isolation", "-w", work, work / RELEASE]
    run([*pip, "wheel", *wheel], doing="building Horovod", log=log, env=_environment(python))
    built = next(work.glob(f"{RELEASE}-*.whl"))
    home = CACHE / "wheels" / key(installed_torch(python))
    home.mkdir(parents=True, exist_ok=True)
    partial = home / f".{os.getpid()}.partial"
    shutil.copyfile(built, partial)
    partial.replace(home / built.name)
    say(f"Horovod is built; the wheel is kept in {home}")
    return home / built.name


def installed_torch(python: Path) -> str:
    """The version of an environment's torch, with the build that the index chose (``2.13.0+cpu``)."""
    query = [str(python), "-c", "from importlib.metadata import version; print(version('torch'))"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def _environment(python: Path) -> dict[str, str]:
    """Horovod's flags; what the user has set (``HOROVOD_GPU_OPERATIONS``, ``CXX``) goes before ours.

    Of ``MAKEFLAGS`` only a number of jobs is taken: ``make`` always sets it, often to nothing, which Horovod takes for
    eight compilers, or names a job server that is not there. CMake imports torch seven times, so that bytecode is kept
    even where PYTHONDONTWRITEBYTECODE is set.
    """
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    asked = re.search(r"-j ?(\d+)", os.environ.get("MAKEFLAGS", ""))
    jobs = int(asked[1]) if asked else max(1, min(os.cpu_count() or 1, memory // MEMORY_PER_COMPILER))
    environment = {**FLAGS, **os.environ, "MAKEFLAGS": f"-j{jobs}", "PYTHONDONTWRITEBYTECODE": ""}
    environment["PATH"] = os.pathsep.join([str(python.parent), os.environ.get("PATH", os.defpath)])
    return environment


def _check_gpu(python: Path) -> None:
    """``HOROVOD_GPU_OPERATIONS`` asks for a build that only a machine with CUDA and NCCL's headers can make."""
    if not os.environ.get("HOROVOD_GPU_OPERATIONS"):
        return
    query = [str(python), "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]
    homes = [os.environ.get(name) for name in ("HOROVOD_NCCL_HOME", "HOROVOD_CUDA_HOME", "CUDA_HOME")]
    includes = [Path(home) / "include" for home in [*homes, "/usr", "/usr/local/cuda"] if home]
    includes += [Path("/usr/include") / f"{platform.machine()}-linux-gnu"]
    includes += [Path(os.environ["HOROVOD_NCCL_INCLUDE"])] if os.environ.get("HOROVOD_NCCL_INCLUDE") else []
    if subprocess.run(query, check=False).returncode != 0:
        raise SetupError("HOROVOD_GPU_OPERATIONS is set, but torch sees no GPU here: unset it to build for CPUs")
    if not any((include / "nccl.h").exists() for include in includes):
        raise SetupError("HOROVOD_GPU_OPERATIONS is set, but nccl.h is not found: set HOROVOD_NCCL_HOME, or unset it")
