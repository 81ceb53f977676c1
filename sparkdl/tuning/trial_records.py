"""What is known of each trial, in the search's folder: the study is made of these records alone. Runs on the driver.

A record is a file that is replaced whole, so that a search whose driver was killed knows of each trial once.
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
"""``paused`` may go on, ``stopped`` will not: others were better; ``finished`` has had all of its epochs."""


@dataclass
class TrialRecord:
    """One trial."""

    number: int
    values: dict[str, Any]
    """By key of the space."""
    state: TrialState = "running"
    until: int = 0
    """The epochs that it goes on to, and then pauses or has finished."""
    first_rung: int = 0
    """The epochs after which it pauses first, where trials pause."""
    history: list[dict[str, float]] = field(default_factory=list)
    """The figures of each epoch."""
    parameters: int = 0
    """Trained numbers of the network."""
    seconds: float = 0.0
    """Time on its slots, starts included."""
    reason: str = ""
    """Why it failed."""
    kind: str = ""
    """And the kind of error."""
    lineage: list[dict[str, Any]] = field(default_factory=list)
    """In a population: after how many epochs it took over which trial's checkpoint, and the values from then on."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come of it."""
        return self.state in ("stopped", "finished", "failed")

    @property
    def epochs(self) -> int:
        """The epochs that it has had."""
        return len(self.history)

    def best_epoch(self, figure: str, *, within: int | None = None) -> int | None:
        """The epoch, from 0, after which a figure was best; None before it is known."""
        known = [
            (value if not is_minimised(figure) else -value, epoch)
            for epoch, figures in enumerate(self.history[:within])
            if (value := figures.get(figure)) is not None and math.isfinite(value)
        ]
        return max(known, key=lambda pair: (pair[0], -pair[1]))[1] if known else None

    def figure(self, name: str, epoch: int) -> float:
        """A figure of the trial when it had had the epoch, counted from 0, as its best one."""
        if name == "parameters":
            return float(self.parameters)
        if name == "seconds":
            return sum(figures["seconds"] for figures in self.history)
        if name == "rows_per_second":
            return sum(figures[name] for figures in self.history) / len(self.history)
        return self.history[epoch][name]

    def outcome(self, figures: Sequence[str]) -> tuple[float, ...] | None:
        """The figures that are searched for: those of the epoch after which the first of them was best.

        None of a trial that failed, or has none yet. A figure that does not change with epochs is that of all.
        """
        of_epochs = [name for name in figures if name.startswith(("train_", "validation_"))]
        epoch = self.best_epoch(of_epochs[0]) if of_epochs else (self.epochs - 1 if self.history else None)
        if epoch is None or self.state == "failed":
            return None
        return tuple(self.figure(name, epoch) for name in figures)

    def save(self, folder: str) -> None:
        """Write it below the search's folder. Raises :class:`CheckpointError` when that cannot be written."""
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
    """All trials of a search, by number. Raises :class:`CheckpointError` where storage does not give one."""
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
