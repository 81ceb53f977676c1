"""The folder of a run's checkpoints: which are complete, which is the newest, and which may be removed.

A checkpoint is valid when its manifest exists, and all files that the manifest names, with the sizes that it gives.
"""

import logging
import re
from collections.abc import Collection
from contextlib import suppress

from sparkdl.errors import CheckpointError, DamagedCheckpointError
from sparkdl.storage import list_folder, remove, remove_unfinished
from sparkdl.training.checkpoints.checkpoint import NAME, load_manifest

__all__ = ["latest", "list_best", "list_manifests", "prune", "remove_leftovers", "step_of"]

log = logging.getLogger(__name__)

SHARD = re.compile(r"shard-\d+-\d+\.[0-9a-f]{8}\.(shared|rank-\d+)\.pt")


def list_manifests(folder: str) -> list[str]:
    """The manifests in a folder, valid or not, the newest first. Raises :class:`CheckpointError`."""
    return _names(folder, "step", "json")


def list_best(folder: str) -> list[str]:
    """The files of best weights in a folder, the newest first. Raises :class:`CheckpointError`."""
    return _names(folder, "best", "pt")


def latest(folder: str) -> str | None:
    """The manifest of the newest valid checkpoint, or None. Runs on the driver.

    Damaged checkpoints, and those with missing or incomplete shards, are skipped with a warning. The content of a shard
    is checked by the rank that reads it. Raises :class:`CheckpointError` when a manifest cannot be read: it may be
    valid, and to skip it would lose work.
    """
    sizes = _sizes(folder)
    for path in list_manifests(folder):
        try:
            manifest = load_manifest(path)
        except DamagedCheckpointError as error:
            log.warning("%s; using the one before it", error)
            continue
        torn = [shard.name for shard in manifest.files if sizes.get(shard.name) != shard.bytes]
        if not torn:
            return path
        log.warning("of the checkpoint %s, %s is missing or torn; using the one before it", path, torn[0])
    old = next((name for name in sizes if name.startswith("step-") and name.endswith(".pt")), None)
    if old:
        raise CheckpointError(
            f"{folder}/{old} was written by an older version, which kept a checkpoint in one file; continue the run"
            " with that version, or start a new one"
        )
    return None


def step_of(path: str | None) -> int:
    """The optimizer steps of a checkpoint, from its name; 0 for None."""
    named = NAME.fullmatch(path.rpartition("/")[2]) if path else None
    return int(named["step"]) if named else 0


def prune(
    folder: str, *, keep_last: int, keep_best: int, written: str, keep: Collection[str], in_parts: bool = False
) -> None:
    """Remove old checkpoints, except the one just ``written`` and the files to ``keep``, by name. Runs on rank 0.

    At least ``keep_last`` files of best weights are kept, whatever ``keep_best`` says: each of the last checkpoints may
    refer to another best epoch. Checkpoints of the same step or a later one do not count: they are damaged, or training
    would have resumed from them. A checkpoint's weights may be in the file of best weights of the same step, which is
    then kept as long as the checkpoint; with ``in_parts``, that file refers to the checkpoint, which is kept for it.

    Raises :class:`CheckpointError` when the folder cannot be listed.
    """
    needed: set[str] = set()
    best, manifests = (list_best(folder), max(keep_best, keep_last)), (list_manifests(folder), keep_last)
    for paths, kept in (best, manifests) if in_parts else (manifests, best):
        others = [path for path in paths if _place(path) < _place(written) and path.rpartition("/")[2] not in keep]
        old = [path for path in others[kept - 1 :] if _place(path) not in needed]
        needed = {_place(path) for path in paths if path not in old}
        for path in old:
            with suppress(OSError, CheckpointError):
                _remove(folder, path)


def remove_leftovers(folder: str, *, damaged: str | None = None) -> None:
    """Remove what a killed attempt left behind. Runs on the driver while no rank runs.

    This is unfinished files, shards without a manifest, and the checkpoint that a rank has found ``damaged``.
    """
    with suppress(OSError, CheckpointError):  # leftovers cost only space
        if damaged:
            remove(damaged)
        remove_unfinished(folder)
        manifests = [load_manifest(path) for path in list_manifests(folder)]
        used = {shard.name for manifest in manifests for shard in manifest.files}
        for name in _sizes(folder):
            if SHARD.fullmatch(name) and name not in used:
                remove(f"{folder}/{name}")


def _remove(folder: str, path: str) -> None:
    """Remove a file; if it is a manifest, then also its shards."""
    shards = []
    if path.endswith(".json"):
        with suppress(DamagedCheckpointError):
            manifest = load_manifest(path)
            shards = [manifest.shared, *manifest.shards]
    remove(path)
    for shard in shards:
        remove(f"{folder}/{shard.name}")


def _place(path: str) -> str:
    """The step and epoch in a file's name."""
    named = NAME.fullmatch(path.rpartition("/")[2])
    return f"{named['step']}-{named['epoch']}" if named else ""


def _names(folder: str, kind: str, ending: str) -> list[str]:
    named = (NAME.fullmatch(name) for name in _sizes(folder))
    found = [each[0] for each in named if each and (each["kind"], each["ending"]) == (kind, ending)]
    return [f"{folder}/{name}" for name in sorted(found, reverse=True)]


def _sizes(folder: str) -> dict[str, int]:
    """The size of each file of a folder, in bytes."""
    try:
        return {entry.name: entry.size for entry in list_folder(folder)}
    except OSError as error:
        raise CheckpointError(
            f"cannot list the checkpoints in {folder}: {error.strerror or error}; resume the run"
            " (train.resume) when the storage gives them again"
        ) from None
