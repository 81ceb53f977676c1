"""A job that is submitted twice runs once, so that a scheduler that has lost the answer can ask again.

Runs on the driver. Whichever driver does the job owns a folder, as the driver of a run does, and leaves its result
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
    """Return what ``work`` returns, or what it has returned to another submission with this key.

    ``folder`` is on storage that every driver reaches. While a driver that has the key lives, others wait for its
    result; when it fails or dies, the next one does the work. ``job`` says what the job is: for another one than the
    key's, raises :class:`~sparkdl.errors.ConfigError`.
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
            log.info("a job with this idempotency key has run already; this is its result")
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
