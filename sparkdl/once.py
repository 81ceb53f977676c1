"""Runs a job once, even if it is submitted several times, so that a scheduler can safely submit it again.

Runs on the driver. The driver that runs the job owns a folder, like the driver of a training, and writes its result
there.
"""

import hashlib
import json
import logging
from collections.abc import Callable
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.storage import join, read_file, write_file
from sparkdl.training.checkpoints.owner import Owner

__all__ = ["run_once"]

RESULT = "result.json"

log = logging.getLogger(__name__)


def run_once(work: Callable[[], dict[str, str]], *, key: str, job: str, folder: str) -> dict[str, str]:
    """Run ``work`` and return its result, or return the result of an earlier submission with the same key.

    ``folder`` is on storage that every driver reaches. While the driver that runs the job is alive, drivers with the
    same key wait for its result; if it fails or dies, the next driver runs the job. ``job`` identifies the job and its
    settings. Raises :class:`~sparkdl.errors.ConfigError` if the key was used for another job.
    """
    place, digest = join(folder, f".job-{_digest(key)}"), _digest(job)
    with Owner() as owner:
        owner.claim(place, wait=True)
        result = _result(place)
        if result is None:
            result = {"job": digest, "summary": work()}
            owner.check()
            write_file(join(place, RESULT), json.dumps(result).encode())
        elif result["job"] == digest:
            log.info("a job with this idempotency key has already run; this is its result")
        else:
            raise ConfigError(
                f"the idempotency key {key!r} was used in {folder} for a job with other settings; choose another key"
            )
        summary: dict[str, str] = result["summary"]
        return summary


def _result(place: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(read_file(join(place, RESULT)))
    except FileNotFoundError:
        return None
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
