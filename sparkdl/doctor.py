"""Checks an installation and a cluster before a job uses them. Runs on the driver."""

import os
import platform
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, metadata
from typing import Any

from packaging.requirements import Requirement

from sparkdl.cluster import Rank, count_slots, get_session, run_ranks, wait_for_ranks
from sparkdl.collectives import Backend, create_backend
from sparkdl.errors import ClusterError, ConfigError, SparkdlError, StorageError
from sparkdl.extras import DISTRIBUTION
from sparkdl.java import ensure_java
from sparkdl.sessions import application_setting, is_remote
from sparkdl.settings import Settings
from sparkdl.stack import check_stack, installed_version
from sparkdl.storage import check_writable, exists, join, list_folder, make_folder, remove, write_file
from sparkdl.tracking import check_store

__all__ = ["Finding", "examine"]

PACKAGES = "pyspark", "torch", "pyarrow", "numpy", "pandas", "mlflow", "horovod"
"""The packages whose versions must be the same on the driver and all ranks."""
FOR_DEVELOPERS = {"classic", "dev"}
"""Extras that are not listed, because they are no features."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    what: str
    text: str
    error: SparkdlError | None = None
    """The reason for which it will not work; None if it works."""


def examine(settings: Settings) -> Iterator[Finding]:
    """Check packages, Java, the cluster, ranks, storage and tracking, in this order. Runs on the driver.

    Ranks are started as for a training, exchange a number, and write a file to ``train.run_dir``. A check is left out
    if it needs something that an earlier one has found not to work.
    """
    yield _finding("packages", _packages)
    yield Finding("extras", _extras())
    java = None if "SPARK_REMOTE" in os.environ else _finding("Java", _java)
    if java:
        yield java
    if not java or not java.error:
        yield from _cluster(settings)
    yield _finding("tracking", partial(check_store, settings.tracking))


def _finding(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, look())
    except SparkdlError as error:
        return Finding(what, str(error), error)


def _packages() -> str:
    check_stack()
    return ", ".join(f"{name} {version}" for name, version in _versions().items())


def _versions() -> dict[str, str]:
    """The versions of Python and of the packages in this process. Runs anywhere."""
    found = {"Python": platform.python_version()}
    return found | {name: version for name in (DISTRIBUTION, *PACKAGES) if (version := installed_version(name))}


def _extras() -> str:
    """The extras that are installed, and those that are not."""
    try:
        own = metadata(DISTRIBUTION)
    except PackageNotFoundError:
        return "not known: sparkdl runs from a folder"
    needed = [Requirement(text) for text in own.get_all("Requires-Dist", [])]
    there: dict[bool, list[str]] = {True: [], False: []}
    for extra in sorted(set(own.get_all("Provides-Extra", [])) - FOR_DEVELOPERS):
        of_extra = [each for each in needed if each.marker and each.marker.evaluate({"extra": extra})]
        packages = [each.name for each in of_extra if each.marker and not each.marker.evaluate({"extra": ""})]
        there[all(map(installed_version, packages))].append(extra)
    missing = f"; not installed: {', '.join(there[False])} (pip install '{DISTRIBUTION}[…]')" if there[False] else ""
    return f"{', '.join(there[True]) or 'none'}{missing}"


def _java() -> str:
    ensure_java()
    return os.environ.get("JAVA_HOME") or "the one on the path"


def _cluster(settings: Settings) -> Iterator[Finding]:
    """Checks Spark, its slots, and ranks in them, as far as these exist."""
    try:
        spark = get_session(settings.cluster)
        where = "Spark Connect" if is_remote(spark) else application_setting(spark, "spark.master", "")
        slots = count_slots(spark, settings.cluster.resources)
        size = wait_for_ranks(spark, settings.cluster)
        yield Finding("Spark", f"{spark.version}, {where}, {slots or 'an unknown number of'} slots for {size} ranks")
        needs = getattr(settings.train.strategy, "needs_torch", None)
        backend = create_backend(settings.cluster.backend, needs_torch=needs)
    except SparkdlError as error:
        yield Finding("Spark", str(error), error)
        return
    run_dir = settings.train.run_dir
    was_there, folder = exists(run_dir), join(run_dir, f"doctor-{uuid.uuid4().hex}")
    try:
        look = partial(_look_around, backend, folder)
        ranks = run_ranks(look, size, spark=spark, backend=backend, slot_timeout=settings.cluster.slot_timeout)
    except SparkdlError as error:
        yield Finding("ranks", str(error), error)
    else:
        yield _finding("ranks", partial(_compared, ranks, backend))
        yield _finding("storage", partial(_reached, ranks, folder))
    finally:
        with suppress(OSError):
            remove(folder if was_there else run_dir)


def _look_around(backend: Backend, folder: str, rank: Rank) -> dict[str, Any]:
    """Exchange a number and write a file. Runs on a rank."""
    import torch

    with backend.connect(torch.device(rank.device)) as world:
        total = world.all_reduce(torch.ones(1, device=rank.device), op="sum")
        assert int(total) == rank.size
    problem = None
    try:
        make_folder(folder)
        write_file(join(folder, f"rank-{rank.rank}"), b"")
    except (OSError, StorageError) as error:
        problem = str(error)
    return {"host": rank.host, "device": rank.device, "versions": _versions(), "problem": problem}


def _compared(ranks: list[dict[str, Any]], backend: Backend) -> str:
    """The hosts and devices of the ranks. Raises :class:`ClusterError` if packages differ from the driver's."""
    here = _versions()
    for number, found in enumerate(ranks):
        names = here.keys() | found["versions"].keys()
        other = [name for name in sorted(names) if _minor(here.get(name)) != _minor(found["versions"].get(name))]
        if other:
            there = ", ".join(f"{name} {found['versions'].get(name, 'missing')}" for name in other)
            driver = ", ".join(f"{name} {here.get(name, 'missing')}" for name in other)
            raise ClusterError(
                f"rank {number} on host {found['host']} has other packages than the driver: {there}; the driver has"
                f" {driver}. Give all hosts the same environment (docs/clusters.md)"
            )
    hosts, devices = {found["host"] for found in ranks}, sorted({found["device"].partition(":")[0] for found in ranks})
    on = next(iter(hosts)) if len(hosts) == 1 else f"{len(hosts)} hosts"
    return f"{len(ranks)} on {on}, on {' and '.join(devices)}, exchanged a number by {backend.name}"


def _minor(version: str | None) -> str | None:
    """The major and minor version (``2.13`` of ``2.13.0+cu130``)."""
    found = re.match(r"\d+(\.\d+)?", version or "")
    return found[0] if found else None


def _reached(ranks: list[dict[str, Any]], folder: str) -> str:
    """Checks that the driver sees the files of all ranks. Raises :class:`StorageError` and :class:`ConfigError`."""
    run_dir = folder.rpartition("/")[0]
    if failed := [f"rank {number}: {found['problem']}" for number, found in enumerate(ranks) if found["problem"]]:
        raise StorageError(f"not all ranks can write to train.run_dir, {run_dir}: {failed[0]}")
    check_writable(run_dir)
    there = {entry.name for entry in list_folder(folder)} if exists(folder) else set()
    if len(there) < len(ranks):
        raise ConfigError(
            f"the files that {len(ranks) - len(there)} of {len(ranks)} ranks wrote to train.run_dir, {run_dir}, are not"
            " visible on the driver: the folder is local to each host. Set train.run_dir and prepare.output to storage"
            " that all hosts reach"
        )
    return f"{run_dir} is seen by the driver and all ranks"
