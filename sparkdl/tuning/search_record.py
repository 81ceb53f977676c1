"""The record of a search, which is saved at its start so that it can be continued. Runs on the driver."""

import json
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.masking import masked
from sparkdl.settings import Settings
from sparkdl.settings.keys import given_values
from sparkdl.storage import join, list_folder
from sparkdl.training.checkpoints.record_file import load_record, save_record

__all__ = ["SearchRecord", "find_search"]

log = logging.getLogger(__name__)

NAME = "search.json"
FREE = {
    "tune": {"trials", "seconds", "at_a_time", "refit", "resume"},
    "train": {"run_dir", "resume", "dataset", "keep_last", "keep_best", "checkpoint_minutes", "checkpoint_steps"},
}
"""Settings that may change when a search is continued: earlier trials stay comparable."""


@dataclass
class SearchRecord:
    """The record of one search; its trials have their own records."""

    run_id: str
    asked: dict[str, Any]
    """The settings that trials depend on: the sections ``prepare``, ``train`` and ``tune``, as they were given."""
    finished: bool = False
    begun: float = field(default_factory=time.time)
    """In seconds since 1970, by the driver's clock."""
    seconds: float = 0.0
    """The seconds that all drivers have searched so far."""

    @classmethod
    def of(cls, run_id: str, settings: Settings) -> "SearchRecord":
        """The record of a new search."""
        return cls(run_id, _asked(settings))

    def save(self, folder: str) -> None:
        """Write the record to the search's folder. Raises :class:`CheckpointError` if that fails."""
        save_record(self, folder, NAME)

    @classmethod
    def load(cls, folder: str) -> "SearchRecord":
        """Read the record. Raises :class:`ConfigError` if there is none, :class:`CheckpointError` if reading fails."""
        return load_record(cls, folder, NAME, of="search")

    def check(self, settings: Settings) -> None:
        """Raise :class:`ConfigError` unless the search can continue with these settings."""
        now = _asked(settings)
        for section, then in self.asked.items():
            for key in sorted(then.keys() | now[section].keys()):
                if then.get(key) != now[section].get(key):
                    raise ConfigError(
                        f"the search {self.run_id} cannot go on with another {section}.{key}: its trials would not be"
                        " comparable. Set it back, or start a new search"
                    )


def find_search(settings: Settings) -> SearchRecord | None:
    """The search that ``tune.resume`` names; with ``auto``, the unfinished one that was begun last, or None.

    Raises :class:`ConfigError` if the search does not exist, or had other settings.
    """
    asked, run_dir = settings.tune.resume, settings.train.run_dir
    if asked is None:
        return None
    if asked != "auto":
        record = SearchRecord.load(join(run_dir, asked))
        record.check(settings)
        return record
    unfinished = []
    with suppress(FileNotFoundError):
        for entry in list_folder(run_dir):
            with suppress(ConfigError):
                record = SearchRecord.load(join(run_dir, entry.name))
                record.check(settings)
                unfinished += [] if record.finished else [record]
    return max(unfinished, key=lambda record: record.begun, default=None)


def _asked(settings: Settings) -> dict[str, Any]:
    """The settings that trials depend on, by section and key, as they are after a round trip through JSON."""
    found = {}
    for name in ("prepare", "train", "tune"):
        given = given_values(getattr(settings, name)) or {}
        kept = {key: value for key, value in given.items() if key not in FREE.get(name, ())}
        found[name] = json.loads(json.dumps(masked(kept), default=str))
    return found
