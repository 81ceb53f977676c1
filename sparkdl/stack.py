"""The packages that sparkdl runs on, and what differs between their versions: every such condition stands here.

Two sets of them are tested: the classic stack (Spark 3.5, NumPy 1, pyarrow 14, Horovod, Petastorm) and the current one
(Spark 4, NumPy 2, today's pyarrow, without the last two).
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
    """What a version of Spark asks of Java."""

    versions: tuple[int, ...]
    module: str | None
    """A module that Spark names on Java's command line, and works without."""


def java_needed(spark: str) -> JavaNeeded:
    """What this version of Spark (``"4.3.0"``) asks of Java."""
    if not _is_spark_4(spark):
        return JavaNeeded((8, 11, 17), None)
    return JavaNeeded((17, 21, 25), "jdk.incubator.vector")


def check_stage_resources(spark: str) -> None:
    """Raise :class:`~sparkdl.errors.ConfigError` unless this version of Spark gives one stage resources of its own."""
    if not _is_spark_4(spark):
        raise ConfigError(
            f"cluster.resources takes Spark 4, and this is {spark}: leave it out, and start the application with"
            " spark.task.cpus and spark.task.resource.gpu.amount"
        )


def scala_of(spark: str) -> str:
    """The version of Scala that packages for this version of Spark are compiled for."""
    return "2.13" if _is_spark_4(spark) else "2.12"


def has_connect(spark: str) -> bool:
    """Whether PySpark of this version brings a Spark Connect server."""
    return _is_spark_4(spark)


def _is_spark_4(spark: str) -> bool:
    return int(spark.partition(".")[0]) >= 4


@cache
def check_stack() -> None:
    """Compare Python and the packages with what this distribution says that it needs. Runs anywhere.

    Raises :class:`~sparkdl.errors.ConfigError` that names all that do not fit: pip refuses them, but may be told to
    install another version of a package later.
    """
    try:
        own = metadata(DISTRIBUTION)
    except PackageNotFoundError:  # run from a folder or an archive: nothing says what it needs
        return
    problems = []
    python, wanted = platform.python_version(), SpecifierSet(own["Requires-Python"])
    if not wanted.contains(python):
        problems.append(f"Python {wanted}, and this is {python}")
    for needed in map(Requirement, own.get_all("Requires-Dist", [])):
        found = installed_version(needed.name) if not needed.marker or needed.marker.evaluate({"extra": ""}) else None
        if found and not needed.specifier.contains(found, prereleases=True):
            problems.append(f"{needed.name} {needed.specifier}, and {found} is installed")
    if problems:
        raise ConfigError(f"sparkdl needs {'; '.join(problems)}: pip install --upgrade {DISTRIBUTION}")


def installed_version(package: str) -> str | None:
    """The version of a package, and None where it is not installed; whoever imports it says so.

    PySpark is also in the package pyspark-client, without what starts Spark.
    """
    for name in (package, "pyspark-client") if package == "pyspark" else (package,):
        with suppress(PackageNotFoundError):
            return version(name)
    return None
