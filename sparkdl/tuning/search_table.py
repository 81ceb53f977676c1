"""The progress of a search, shown in a terminal, a notebook or a log. Runs on the driver."""

import logging
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from statistics import mean
from typing import Any

from sparkdl.settings import Tune
from sparkdl.tables import aligned
from sparkdl.tuning.study import best_records
from sparkdl.tuning.trial_records import TrialRecord

__all__ = ["SearchTable", "described_values"]

log = logging.getLogger(__name__)

REDRAW_SECONDS = 1.0
FRONT_SHOWN = 5
"""The largest number of trials of a Pareto front in the table."""


class SearchTable:
    """Shows the best trial or the Pareto front, running trials, how the others ended, and the remaining seconds.

    In a terminal or a notebook, one table is updated in place. Elsewhere, such as in the log of a batch job, each trial
    that is over gets a line.
    """

    def __init__(self, settings: Tune, figures: Sequence[str], epochs: int, *, spent: float = 0.0) -> None:
        """``spent`` is the number of seconds that earlier drivers have searched."""
        self._settings, self._figures, self._epochs = settings, figures, epochs
        self._begun, self._drawn, self._lines = time.monotonic() - spent, 0.0, 0
        self._notebook = _notebook_display()
        self._terminal = self._notebook is None and sys.stderr.isatty()
        self._drawing = threading.Lock()
        self._handlers = [
            handler
            for handler in logging.getLogger().handlers
            if self._terminal and isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr
        ]
        for handler in self._handlers:
            handler.addFilter(self._make_way)

    def close(self) -> None:
        """Leave the table in place; later output appears below it."""
        self._lines = 0
        for handler in self._handlers:
            handler.removeFilter(self._make_way)

    def over(self, record: TrialRecord, records: Sequence[TrialRecord]) -> None:
        """Write a line for a trial that is over, unless a table is shown."""
        if self._notebook is None and not self._terminal:
            counted = sum(each.is_over for each in records)
            log.info("%d of %d trials: %s", counted, self._settings.budget, "  ".join(self._row(record)))

    def update(self, records: Sequence[TrialRecord], running: Sequence[TrialRecord], *, last: bool = False) -> None:
        """Update the table, at most once a second."""
        if not (self._terminal or self._notebook) or (not last and time.monotonic() - self._drawn < REDRAW_SECONDS):
            return
        self._drawn = time.monotonic()
        text = self.text(records, running)
        if self._notebook is not None:
            self._notebook.update({"text/plain": text}, raw=True)
            return
        size = shutil.get_terminal_size()
        lines = [line[: size.columns - 1] for line in text.splitlines()[: size.lines - 1]]
        with self._drawing:
            sys.stderr.write(self._back() + "\n".join(lines) + "\n")
            sys.stderr.flush()
            self._lines = len(lines)

    def _make_way(self, record: logging.LogRecord) -> bool:
        """Erase the table before a line is logged, so that the line appears above the next table."""
        with self._drawing:
            sys.stderr.write(self._back())
            self._lines = 0
        return True

    def _back(self) -> str:
        """The control sequence that moves to the beginning of the table and erases it."""
        return f"\x1b[{self._lines}F\x1b[J" if self._lines else ""

    def text(self, records: Sequence[TrialRecord], running: Sequence[TrialRecord]) -> str:
        """The table."""
        best = best_records(records, self._figures)[:FRONT_SHOWN]
        rows = [["trial", "is", "epochs", *self._figures, "values"]]
        rows += [self._row(record, "best") for record in best]
        rows += [self._row(record) for record in running if record not in best]
        states = Counter(record.state for record in records)
        counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        left = self.seconds_left(records, len(running))
        head = f"{len(records)} of {self._settings.budget} trials: {counts or 'none yet'}"
        if left is not None:
            head += f"; about {left:,.0f} s left"
        return f"{head}\n{aligned(rows, left=(0, len(rows[0]) - 1))}"

    def seconds_left(self, records: Sequence[TrialRecord], running: int) -> float | None:
        """An estimate of the remaining seconds, from trials that are over; those that failed at once do not count.

        None before it is known, and when all trials are over.
        """
        took = [record.seconds for record in records if record.is_over and record.history]
        waiting = self._settings.budget - sum(record.is_over for record in records)
        if not took or not waiting:
            return None
        left = max(0.0, waiting - running / 2) * mean(took) / max(1, running)
        if self._settings.seconds is not None:
            left = min(left, max(0.0, self._settings.seconds - (time.monotonic() - self._begun)) + mean(took))
        return left

    def _row(self, record: TrialRecord, state: str | None = None) -> list[str]:
        outcome = record.outcome(self._figures)
        figures = [f"{value:.4g}" for value in outcome] if outcome else ["-"] * len(self._figures)
        told = record.reason.strip().splitlines()[-1:] if record.state == "failed" else []
        values = told[0] if told else described_values(record.values)
        return [f"{record.number}", state or record.state, f"{record.epochs}/{self._epochs}", *figures, values]


def described_values(values: dict[str, Any]) -> str:
    """The values of a trial as text; keys are shortened to their last parts."""
    return ", ".join(
        f"{key.rpartition('.')[2]}={value:.4g}" if isinstance(value, float) else f"{key.rpartition('.')[2]}={value}"
        for key, value in values.items()
    )


def _notebook_display() -> Any:
    """A display in the notebook's cell whose text can be replaced; None outside of notebooks."""
    shell = sys.modules.get("IPython")
    instance = shell.get_ipython() if shell else None
    if instance is None or not hasattr(instance, "kernel"):
        return None
    from IPython.display import display

    return display({"text/plain": ""}, raw=True, display_id=True)
