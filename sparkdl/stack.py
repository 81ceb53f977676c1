"""The versions of packages that sparkdl supports, and all differences between these versions.

Two sets are tested: the classic stack (Spark 3.5, NumPy 1, pyarrow 14, Horovod, Petastorm) and the current stack
(Spark 4, NumPy 2, today's pyarrow, without Horovod and Petastorm).
"""

import platform
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, version
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from sparkdl.errors import ConfigError
from sparkdl.extras import DISTRIBUTION

__all__ = [
    "JavaNeeded",
    "check_stack",
    "check_stage_resources",
    "has_connect",
    "installed_version",
    "java_needed",
    "scala_of",
]


class JavaNeeded(NamedTuple):
    """The requirements of a Spark version on Java."""

    versions: tuple[int, ...]
    module: str | None
    """A module that Spark puts on Java's command line, but does not need."""


def java_needed(spark: str) -> JavaNeeded:
    """The requirements of this Spark version (``"4.3.0"``) on Java."""
    if not _is_spark_4(spark):
        return JavaNeeded((8, 11, 17), None)
    return JavaNeeded((17, 21, 25), "jdk.incubator.vector")


def check_stage_resources(spark: str) -> None:
    """Raise :class:`~sparkdl.errors.ConfigError` unless this version of Spark supports resources per stage."""
    if not _is_spark_4(spark):
        raise ConfigError(
            f"cluster.resources needs Spark 4, but this is {spark}: remove it, and start the application with"
            " spark.task.cpus and spark.task.resource.gpu.amount"
        )


def scala_of(spark: str) -> str:
    """The Scala version of packages for this version of Spark."""
    return "2.13" if _is_spark_4(spark) else "2.12"


def has_connect(spark: str) -> bool:
    """Whether PySpark of this version brings a Spark Connect server."""
    return _is_spark_4(spark)


def _is_spark_4(spark: str) -> bool:
    return int(spark.partition(".")[0]) >= 4


@cache
def check_stack() -> None:
    """Compare the versions of Python and packages with the requirements of this distribution. Runs anywhere.

    pip checks them when it installs sparkdl, but another version of a package may be installed later. Raises
    :class:`~sparkdl.errors.ConfigError`, which names all that do not meet the requirements.
    """
    try:
        own = metadata(DISTRIBUTION)
    except PackageNotFoundError:  # not installed, but run from a folder or an archive: requirements are not known
        return
    problems = []
    python, wanted = platform.python_version(), SpecifierSet(own["Requires-Python"])
    if not wanted.contains(python):
        problems.append(f"Python {wanted}, but this is {python}")
    for needed in map(Requirement, own.get_all("Requires-Dist", [])):
        found = installed_version(needed.name) if not needed.marker or needed.marker.evaluate({"extra": ""}) else None
        if found and not needed.specifier.contains(found, prereleases=True):
            problems.append(f"{needed.name} {needed.specifier}, and {found} is installed")
    if problems:
        raise ConfigError(f"sparkdl needs {'; '.join(problems)}: pip install --upgrade {DISTRIBUTION}")


def installed_version(package: str) -> str | None:
    """The installed version of a package; None if it is not installed.

    PySpark may also come from the package pyspark-client, which cannot start Spark itself.
    """
    for name in (package, "pyspark-client") if package == "pyspark" else (package,):
        with suppress(PackageNotFoundError):
            return version(name)
    return None
