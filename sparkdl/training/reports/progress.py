"""The progress bar on the driver, in a terminal and in a notebook, fed by rank 0."""

import sys
import time
from types import TracebackType
from typing import Any, Self

from tqdm.auto import tqdm

__all__ = ["Progress"]


class Progress:
    """Shows epoch, step, loss, the task's figure, rows per second and the time left.

    Where there is neither a terminal nor a notebook (a batch job's log), each epoch gets a line and nothing else.
    """

    def __init__(self, figure: str = "accuracy") -> None:
        """``figure`` is the figure that is shown beside the loss."""
        self._figure = figure
        self._bar: Any = None
        self._epochs = 0
        self._epoch_started = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def epoch_started(self, *, epoch: int, epochs: int, step: int, total: int) -> None:
        """Rank 0 begins an epoch, or the rest of one, after ``step`` steps of ``total``."""
        self._epochs = epochs
        self._epoch_started = time.monotonic()
        if self._bar is None:
            # disable=None: silent unless it writes to a terminal; tqdm.auto shows a widget in a notebook regardless
            self._bar = tqdm(total=total, initial=step, unit="step", dynamic_ncols=True, disable=None, leave=True)
        self._bar.total = total
        self._bar.update(step - self._bar.n)  # back to the checkpoint, after a failure
        self._bar.set_description(f"epoch {epoch + 1}/{epochs}")

    def steps(self, *, steps: list[list[float]], rows: int) -> None:
        """Rank 0 has finished these steps; all ranks together have seen ``rows`` rows in this epoch."""
        if not steps:
            return
        step, loss, value, _ = steps[-1]
        rate = rows / max(1e-9, time.monotonic() - self._epoch_started)
        figures = f"loss {loss:.3f}, {self._figure} {value:.3f}"
        self._bar.set_postfix_str(f"{figures}, {rate:,.0f} rows/s", refresh=False)
        self._bar.update(int(step) + 1 - self._bar.n)

    def epoch(self, *, epoch: int, figures: dict[str, float]) -> None:
        """An epoch is complete: its figures stay on the screen or in the log."""
        told = {name.replace("_", " "): value for name, value in figures.items() if name != "seconds"}
        shown = ", ".join(f"{name} {value:,.4g}" for name, value in told.items())
        tqdm.write(f"epoch {epoch + 1}/{self._epochs}: {shown}", file=sys.stderr)
