"""What a rank tells the driver while it trains, and the check that its loss is still a number. Runs on ranks."""

import math
import time

import torch

from sparkdl.cluster import Rank
from sparkdl.errors import TrainingError

__all__ = ["Reporter"]

FLUSH_SECONDS = 0.25  # reading a loss back from a GPU waits for it, so it is done now and then, not every step


class Reporter:
    """Collects the figures of steps and sends those of rank 0 in batches.

    Messages: ``epoch_started`` (epoch, epochs, steps), ``steps`` (a list of [step, loss, accuracy, learning rate] over
    rank 0's rows, and the rows that all ranks have seen in this epoch), ``epoch`` (epoch, figures over all rows).
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self._flushed = 0.0
        self._clear()

    def start_epoch(self, epoch: int, *, steps: int, epochs: int) -> None:
        """Begin to count the rows of an epoch of so many steps."""
        self._clear()
        self._send("epoch_started", epoch=epoch, steps=steps, epochs=epochs)

    def step(
        self, step: int, loss_sum: torch.Tensor, correct: torch.Tensor, *, rows: int, global_rows: int, rate: float
    ) -> None:
        """Note one step: the summed loss and the correct answers among this rank's rows."""
        self._steps.append((step, rows, rate))
        self._figures += [loss_sum, correct]
        self._global_rows += global_rows
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._flush()

    def epoch_totals(self) -> torch.Tensor:
        """Summed loss, correct answers and rows of this rank in the epoch, as float64."""
        self._flush()
        return self._totals

    def epoch(self, epoch: int, figures: dict[str, float]) -> None:
        """Report the figures of a finished epoch."""
        self._send("epoch", epoch=epoch, figures=figures)

    def _clear(self) -> None:
        self._steps: list[tuple[int, int, float]] = []
        self._figures: list[torch.Tensor] = []
        self._global_rows = 0
        self._totals = torch.zeros(3, dtype=torch.float64)

    def _flush(self) -> None:
        """Check, add up and send what has come together."""
        self._flushed = time.monotonic()
        if not self._steps:
            return
        figures = torch.stack(self._figures).double().cpu().reshape(-1, 2)
        report = []
        for (step, rows, rate), (loss_sum, correct) in zip(self._steps, figures.tolist(), strict=True):
            if not math.isfinite(loss_sum):
                raise TrainingError(
                    f"the loss is {loss_sum} at step {step} (learning rate {rate:g}, rank {self.rank.rank}); training"
                    " has stopped and the last good checkpoint is kept. Try a smaller learning_rate, warmup_epochs,"
                    " clip_norm or float32, and look for extreme values in the features"
                )
            if rows:
                report.append([step, loss_sum / rows, correct / rows, rate])
        self._totals += torch.cat([figures.sum(dim=0), torch.tensor([float(sum(rows for _, rows, _ in self._steps))])])
        self._steps.clear()
        self._figures.clear()
        self._send("steps", steps=report, rows=self._global_rows)

    def _send(self, kind: str, **payload: object) -> None:
        if self.rank.rank == 0:
            self.rank.send(kind, **payload)
