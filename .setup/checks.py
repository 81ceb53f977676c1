"""What the machine must have before anything is downloaded; each problem is one line that says what to do."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path

from steps import SetupError

__all__ = ["PYTHON", "check_compiler", "check_disk", "check_venv", "find_java_17", "find_python", "places"]

PYTHON = (3, 11)
GIGABYTE = 10**9
SPACE = {"environment": 6.4 * GIGABYTE, "temporary": 2.7 * GIGABYTE, "cache": 0.8 * GIGABYTE}
"""Measured with PyTorch's build for CUDA, which package indices offer: the finished environment; what pip downloads and
unpacks before it installs PyTorch; what pip and the wheel cache keep."""


def find_python() -> str:
    """The Python 3.11 to use: the one that runs this, or ``python3.11`` on the path."""
    if sys.version_info[:2] == PYTHON:
        # Inside an environment the one that it was made from, so that a broken .venv can be made anew.
        return str(getattr(sys, "_base_executable", sys.executable))
    found = shutil.which("python3.11")
    if found and subprocess.run([found, "-c", ""], stderr=subprocess.DEVNULL, check=False).returncode == 0:
        return found
    raise SetupError(
        f"sparkdl needs Python 3.11, and python3 here is {sys.version_info[0]}.{sys.version_info[1]}: "
        "put `python3.11` on the PATH (Debian, Ubuntu: apt install python3.11 python3.11-venv)"
    )


def check_venv() -> None:
    """Debian ships ``venv`` apart from Python."""
    if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
        raise SetupError(
            "this Python cannot make virtual environments: install its venv module "
            "(Debian, Ubuntu: apt install python3.11-venv)"
        )


def check_compiler(environ: Mapping[str, str]) -> None:
    """Building Horovod takes a compiler that knows C++20, and Python's headers."""
    try:
        asked = shlex.split(environ.get("CXX", ""))
    except ValueError as error:
        raise SetupError(f"CXX is no command ({error}): {environ['CXX']}") from None
    commands = [asked] if asked else [["c++"], ["g++"], ["clang++"]]
    names = [command[0] for command in commands]
    there = [[shutil.which(name, path=environ.get("PATH")) or "", *options] for name, *options in commands]
    compiler = next((command for command in there if command[0]), None)
    if compiler is None:
        raise SetupError(
            f"no C++ compiler found ({', '.join(names)}), and Horovod is built from source: "
            "install one (Debian, Ubuntu: apt install g++)"
        )
    command = [*compiler, "-std=c++20", "-x", "c++", "-fsyntax-only", "-"]
    trial = subprocess.run(command, input="#include <concepts>\n", text=True, capture_output=True, check=False)
    if trial.returncode != 0:
        name = shlex.join(compiler)
        raise SetupError(f"{name} does not compile C++20, which torch's headers need: install g++ 11 or newer")
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        raise SetupError(
            f"Python's headers are missing ({header}): install them (Debian, Ubuntu: apt install python3.11-dev)"
        )


def check_disk(places: Mapping[Path, float]) -> None:
    """Every disk must have room for what goes on it (bytes by folder; folders on one disk add up)."""
    needed: dict[int, float] = {}
    where: dict[int, Path] = {}
    for place, size in places.items():
        existing = next(folder for folder in (place, *place.parents) if folder.exists())
        disk = existing.stat().st_dev
        needed[disk] = needed.get(disk, 0) + size
        where.setdefault(disk, existing)
    for disk, size in needed.items():
        free = shutil.disk_usage(where[disk]).free
        if free < size:
            raise SetupError(
                f"not enough disk space at {where[disk]}: {size / GIGABYTE:.1f} GB are needed and "
                f"{free / GIGABYTE:.1f} GB are free"
            )


def places(environment: Path, cache: Path) -> dict[Path, float]:
    """What is still to be written, and where."""
    temporary = Path(tempfile.gettempdir())
    sizes = {environment: SPACE["environment"], temporary: SPACE["temporary"], cache: SPACE["cache"]}
    return {place: size for place, size in sizes.items() if place != environment or not environment.exists()}


def find_java_17(environ: Mapping[str, str]) -> Path | None:
    """The Java that Spark would start (``JAVA_HOME`` first, then the path), if it is version 17."""
    if environ.get("JAVA_HOME"):
        java = Path(environ["JAVA_HOME"]) / "bin" / "java"
    else:
        java = Path(shutil.which("java", path=environ.get("PATH", os.defpath)) or "")
    try:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return java if re.search(r'version "17[."]', answer.stderr) else None
