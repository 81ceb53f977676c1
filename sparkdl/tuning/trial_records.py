"""The records of trials in the search's folder, from which the study is made. Runs on the driver.

A record is one file, which is replaced as a whole: when the driver is killed, each trial has one complete record.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sparkdl.errors import CheckpointError, DamagedCheckpointError
from sparkdl.settings.tune import is_minimised
from sparkdl.storage import join, list_folder, make_folder, read_file, write_file

__all__ = ["TrialRecord", "TrialState", "load_records"]

TrialState = Literal["running", "paused", "stopped", "finished", "failed"]
"""A ``paused`` trial may continue, a ``stopped`` one does not, and a ``finished`` one has had all its epochs."""


@dataclass
class TrialRecord:
    """The record of one trial."""

    number: int
    values: dict[str, Any]
    """The values of the trial, by key of the space."""
    state: TrialState = "running"
    until: int = 0
    """The number of epochs after which the trial pauses or is finished."""
    first_rung: int = 0
    """The number of epochs after which the trial pauses for the first time; used by successive halving."""
    history: list[dict[str, float]] = field(default_factory=list)
    """The figures of each epoch."""
    parameters: int = 0
    """The number of trained parameters."""
    seconds: float = 0.0
    """The time on slots, including starts."""
    reason: str = ""
    """The message of the error that ended the trial."""
    kind: str = ""
    """The class of that error."""
    lineage: list[dict[str, Any]] = field(default_factory=list)
    """In a population, the checkpoints that were taken over: of which trial, at which epoch, with which new values."""

    @property
    def is_over(self) -> bool:
        """Whether the trial has ended and will not continue."""
        return self.state in ("stopped", "finished", "failed")

    @property
    def epochs(self) -> int:
        """The number of epochs so far."""
        return len(self.history)

    def best_epoch(self, figure: str, *, within: int | None = None) -> int | None:
        """The epoch, counted from 0, with the best value of a figure; None before there is one."""
        known = [
            (value if not is_minimised(figure) else -value, epoch)
            for epoch, figures in enumerate(self.history[:within])
            if (value := figures.get(figure)) is not None and math.isfinite(value)
        ]
        return max(known, key=lambda pair: (pair[0], -pair[1]))[1] if known else None

    def figure(self, name: str, epoch: int) -> float:
        """The value of a figure if ``epoch``, counted from 0, is taken as the trial's best one."""
        if name == "parameters":
            return float(self.parameters)
        if name == "seconds":
            return sum(figures["seconds"] for figures in self.history)
        if name == "rows_per_second":
            return sum(figures[name] for figures in self.history) / len(self.history)
        return self.history[epoch][name]

    def outcome(self, figures: Sequence[str]) -> tuple[float, ...] | None:
        """The values of the search's figures at the best epoch of the first figure that changes with epochs.

        None for a trial that failed, or has no figures yet. Other figures are those of the whole trial.
        """
        of_epochs = [name for name in figures if name.startswith(("train_", "validation_"))]
        epoch = self.best_epoch(of_epochs[0]) if of_epochs else (self.epochs - 1 if self.history else None)
        if epoch is None or self.state == "failed":
            return None
        return tuple(self.figure(name, epoch) for name in figures)

    def save(self, folder: str) -> None:
        """Write the record below the search's folder. Raises :class:`CheckpointError` if that fails."""
        place = join(folder, "trials")
        try:
            make_folder(place)
            write_file(join(place, f"{self.number:05d}.json"), json.dumps(asdict(self)).encode())
        except OSError as error:
            raise CheckpointError(
                f"cannot write the trial {self.number} to {place}: {error.strerror or error}; the search can be"
                " continued when that can be written (tune.resume)"
            ) from None


def load_records(folder: str) -> list[TrialRecord]:
    """The records of all trials of a search, by number. Raises :class:`CheckpointError` if one cannot be read."""
    place = join(folder, "trials")
    found: list[TrialRecord] = []
    try:
        names: Iterable[str] = [entry.name for entry in list_folder(place) if entry.name.endswith(".json")]
    except FileNotFoundError:
        return found
    for name in sorted(names):
        try:
            found.append(TrialRecord(**json.loads(read_file(join(place, name)))))
        except OSError as error:
            raise CheckpointError(f"cannot read {join(place, name)}: {error.strerror or error}") from None
        except (ValueError, TypeError) as error:
            raise DamagedCheckpointError(
                f"{join(place, name)} is damaged ({error}); remove it, and the trial is run again"
            ) from None
    return found
