"""When a checkpoint is due, and writing it while training goes on. Runs on ranks."""

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

import torch

from sparkdl.cluster import Rank
from sparkdl.errors import CheckpointError, TrainingError
from sparkdl.settings import Train
from sparkdl.training.checkpoint import prune, save_checkpoint
from sparkdl.training.replica import Replica
from sparkdl.training.reporter import Reporter
from sparkdl.training.state import TrainingState, collect

__all__ = ["Saver", "StopRequested"]

POLL_SECONDS = 0.5  # how often rank 0 tells the others what is to be done


class StopRequested(Exception):  # noqa: N818 - nothing went wrong
    """The driver has asked for an end; a checkpoint has been written."""


class Saver:
    """Writes the checkpoints of a run: on rank 0, in the background, at most one at a time.

    Rank 0 decides when one is due, and all ranks hear of it at the same step: a clock decides, and no two agree. They
    ask at most every half second, so that a step costs nothing.
    """

    def __init__(
        self, folder: str, settings: Train, rank: Rank, replica: Replica, reporter: Reporter, *, batch_size: int
    ) -> None:
        self._folder, self._settings, self._rank, self._replica = folder, settings, rank, replica
        self._reporter, self._batch_size = reporter, batch_size
        self._collectives = replica.strategy.collectives
        self._next_poll = 0
        self._polled = self._saved = time.monotonic()
        self._polled_step = self._saved_step = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sparkdl-checkpoint")
        self._writing: Future[None] | None = None
        self._written = 0
        self._begun: set[str] = set()
        self._best_weights: dict[str, torch.Tensor] | None = None
        self._error: CheckpointError | None = None
        state = replica.model.state_dict()
        self._finite = {name for name, tensor in state.items() if bool(torch.isfinite(tensor).all())}
        """What has to stay so: a mask of attention is a buffer that is not."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=error is not None)

    def start(self, state: TrainingState, *, checkpoint: str | None = None) -> None:
        """Begin to count at this step.

        The ``checkpoint`` that this attempt continues from stays, and its best weights, until as many newer ones as are
        kept have been written: those that were there already are damaged.
        """
        self._begun = {checkpoint.rpartition("/")[2], state.best} if checkpoint else set()
        self._polled_step = self._saved_step = state.step
        self._next_poll = state.step + 1

    def after_step(self, state: TrainingState) -> None:
        """Save if it is time to, on all ranks together. Raises :class:`StopRequested` when the driver wants an end."""
        if state.step < self._next_poll:
            return
        order = torch.tensor(self._decide(state) if self._rank.rank == 0 else (0, 0, 0))
        save, stop, self._next_poll = map(int, self._collectives.broadcast(order))
        if save:
            self.save(state)
        if stop:
            self.finish()
            raise StopRequested

    def save(self, state: TrainingState, *, best: bool = False) -> None:
        """Take a copy now and write it in the background; ``best``: the weights too, as those of the last epoch.

        Waits for the checkpoint before it. All ranks call it together. A checkpoint that cannot be written is told,
        and training goes on: the one before is still there. Raises :class:`~sparkdl.errors.TrainingError` for weights
        that are not finite: a good checkpoint is not replaced by them.
        """
        self._reporter.flush(state)
        copy = collect(state, self._replica, self._batch_size)
        self._saved, self._saved_step = time.monotonic(), state.step
        if self._rank.rank == 0:
            self._check(copy)
            self._wait()
            self._writing = self._thread.submit(self._write, copy, state, best)

    def finish(self) -> None:
        """Return when everything is written. Raises :class:`CheckpointError` on rank 0 if the last one could not be."""
        self._wait()
        if self._error:
            raise self._error

    def _decide(self, state: TrainingState) -> tuple[int, int, int]:
        """Whether to save, whether to stop, and after which step to ask again."""
        now = time.monotonic()
        steps, seconds = state.step - self._polled_step, now - self._polled
        self._polled, self._polled_step = now, state.step
        ahead = max(1, min(int(steps * POLL_SECONDS / max(seconds, 1e-9)), 2 * max(steps, 1)))
        minutes, every = self._settings.checkpoint_minutes, self._settings.checkpoint_steps
        stop = self._rank.stop_requested
        due = minutes is not None and now - self._saved >= 60 * minutes
        if every is not None:
            due = due or state.step // every > self._saved_step // every
            ahead = min(ahead, every - state.step % every)
        return int(due or stop), int(stop), state.step + ahead

    def _check(self, copy: Mapping[str, Any]) -> None:
        """Raise :class:`TrainingError` for weights that are no longer finite.

        In the thread that trains: an operation in parallel would give the one that writes a pool of OpenMP threads of
        its own, and with more of these than cores OpenMP does not wait actively any more. On two cores that made every
        step a sixth longer, for the rest of the run.
        """
        if not all(bool(torch.isfinite(copy["model"][name]).all()) for name in self._finite):
            raise TrainingError(
                f"weights are not finite after step {copy['step']}; the last good checkpoint in {self._folder} is kept"
            )

    def _write(self, copy: Mapping[str, Any], state: TrainingState, best: bool) -> None:
        copy, self._error = dict(copy), None
        if best:
            self._best_weights = copy["model"]
        place = {"step": copy["step"], "epoch": copy["epoch"]}
        try:
            if self._best_weights is not None:
                path = save_checkpoint(self._folder, "best", {"model": self._best_weights}, **place)
                state.best, self._best_weights = path.rpartition("/")[2], None
            copy["best"] = state.best
            path = save_checkpoint(self._folder, "step", copy, **place)
        except CheckpointError as error:
            self._error = error
            self._rank.send("warning", text=f"{error}. Training goes on; the checkpoint before it is still there")
            return
        self._rank.send("checkpoint", path=path, step=copy["step"])
        keep_last, keep_best = self._settings.keep_last, self._settings.keep_best
        self._written += 1
        if self._written >= keep_last:
            self._begun = set()
        try:
            keep = {state.best, *self._begun}
            prune(self._folder, keep_last=keep_last, keep_best=keep_best, written=path, keep=keep)
        except Exception as error:  # whatever storage raises: the new one is whole, and old ones cost only space
            self._rank.send("warning", text=f"{error}. Training goes on; old checkpoints stay there")

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()
