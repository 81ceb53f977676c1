"""The epochs of an asynchronous run: dealing portions, evaluation, checkpoints, messages. Runs with the coordinator.

No tensor comes here: workers evaluate the servers' weights and write the best ones, servers write their shards.
"""

import time
from contextlib import closing
from math import ceil
from typing import Any

import torch

from sparkdl.cluster import OnMessage
from sparkdl.settings import Cluster, Train
from sparkdl.settings.strategies import SteppingOptions
from sparkdl.training.asynchronous.coordinator import Coordinator
from sparkdl.training.asynchronous.crew import Crew
from sparkdl.training.asynchronous.merged import Merged, figures_of, times_of
from sparkdl.training.asynchronous.portions import Portions
from sparkdl.training.asynchronous.recorder import Recorder
from sparkdl.training.best import is_better, is_over
from sparkdl.training.checkpoints.checkpoint import Shard, load_manifest
from sparkdl.training.checkpoints.state import TrainingState, resume
from sparkdl.training.evaluation import Evaluation, evaluation_of
from sparkdl.training.job import Job, TrainingResult
from sparkdl.training.reports.reporter import Measured
from sparkdl.training.task_to_train import task_to_train

__all__ = ["RETRY_SECONDS", "Epochs", "portions_of"]

PORTION_STEPS = 8  # at most, in a portion: small ones cost little when a worker dies or is slow
PORTIONS = 64  # at least, in an epoch that has as many steps
RETRY_SECONDS = 0.2
EVALUATION_PORTIONS = 4  # per worker, so that slow workers can do fewer


class Epochs:
    """One run, epoch by epoch, with its progress."""

    def __init__(self, job: Job, cluster: Cluster, coordinator: Coordinator, crew: Crew, on_message: OnMessage) -> None:
        self._job, self._settings, self._dataset = job, job.settings, job.dataset
        self._task = task_to_train(job.dataset.card, job.settings)
        self._coordinator, self._crew, self._on_message = coordinator, crew, on_message
        self._workers = cluster.ranks.max
        begun = load_manifest(coordinator.checkpoint) if coordinator.checkpoint else None
        self._state = resume(begun, rank=0, size=1, batch_size=job.settings.batch_size) if begun else TrainingState()
        self._again = begun is not None and begun.strategy == job.settings.strategy.model_dump()
        """Whether servers may have merged a part of the first epoch already."""
        self._rows = 0.0
        """Rows of the epoch in progress that workers have reported."""
        if not self._again:
            self._state.seconds = 0.0  # the epoch's clock starts again
        self._recorder = Recorder(job, cluster, coordinator, begun)

    def run(self) -> TrainingResult:
        """Train all epochs that are left; returns the result with the figures of the best epoch."""
        state = self._state
        with closing(self._recorder):
            try:
                self._crew.wait_for_all(self._beat)
                if self._again:
                    state.step -= self._merged().steps  # this epoch's steps are counted at its end
                while not self._over():
                    self._one_epoch()
            except (KeyboardInterrupt, SystemExit):
                self._recorder.save_in_time(state)
                raise
            best = self._recorder.best_weights
            held_out = [split for split in self._dataset.splits if split != "train"]
            evaluations = {split: self._evaluate(split, best) for split in held_out}
        return TrainingResult(state.history, state.best_epoch, best, evaluations)

    def _over(self) -> bool:
        """Whether nothing is left to train."""
        return self._state.epoch >= self._settings.epochs or is_over(self._state.history, self._settings, self._task)

    def _one_epoch(self) -> None:
        """Train, evaluate and save: one epoch, or what is left of it."""
        state, settings = self._state, self._settings
        started = time.monotonic() - state.seconds
        dealt = self._train(started)
        merged = self._merged()
        self._send("times", epoch=state.epoch, times=times_of(dealt))
        figures = figures_of(merged, dealt, self._task, seconds=time.monotonic() - started)
        if "validation" in self._dataset.splits:
            found = self._evaluate("validation")
            figures |= {f"validation_{name}": value for name, value in found.figures.items()}
        figures["seconds"] = time.monotonic() - started
        best = is_better(figures, state.history, state.best_epoch, settings, self._task)
        state.step += merged.steps
        state.finish_epoch(figures, best=best)
        self._again = False
        self._send("epoch", epoch=state.epoch - 1, figures=figures)
        if best:
            order = {"kind": "keep_best", "step": state.step, "epoch": state.epoch}
            kept = self._coordinator.deal([order], at_once=1)
            self._finish(kept)
            self._recorder.best = Shard(**kept.results[0])
        saving = self._recorder.save(state)
        self._crew.wait(saving.done, self._beat)

    def _train(self, started: float) -> list[Portions]:
        """Have workers train on all rows of the epoch that servers have not merged yet."""
        state, options = self._state, self._settings.strategy
        assert isinstance(options, SteppingOptions)
        steps, count = portions_of(self._settings, self._dataset.rows("train"))
        epochs, step = self._settings.epochs, state.step
        total = step + (epochs - state.epoch) * steps * count
        self._send("epoch_started", epoch=state.epoch, epochs=epochs, step=step, total=total)
        orders = [
            {"kind": "train", "epoch": state.epoch, "portion": number, "portions": count, "again": self._again}
            for number in range(count)
        ]
        alone = ceil(options.warm_start / steps) if state.epoch == 0 else 0
        dealt = []
        self._rows = 0.0
        for part, at_once in ((orders[:alone], 1), (orders[alone:], None)):
            if part:
                dealt.append(self._coordinator.deal(part, at_once=at_once))
                self._finish(dealt[-1], started=started)
        return dealt

    def _finish(self, portions: Portions, *, started: float | None = None) -> None:
        """Return when the portions are done. During training, report the workers' figures, and save when it is due."""
        told = 0

        def watch() -> None:
            nonlocal told
            self._beat()
            if started is not None:
                results = list(portions.results.values())
                self._tell(results[told:])
                told = len(results)
                self._state.seconds = time.monotonic() - started
                self._recorder.save_if_due(self._state, steps=sum(result["steps"] for result in results))

        self._crew.wait(lambda: portions.finished, watch)
        watch()

    def _tell(self, results: list[dict[str, Any]]) -> None:
        """Report the mean figures of each portion, at the portion's first step."""
        figures = []
        for result in results:
            if result["steps"]:
                loss, *sums, weight, rows = result["figures"]
                self._rows += rows
                if weight:
                    figure = self._task.figures(sums, weight)[self._task.step_figure]
                    figures.append([result["step"], loss / weight, figure, result["rate"]])
        if figures:
            self._state.measure(Measured([], figures))
            self._send("steps", steps=figures, rows=int(self._rows))

    def _merged(self) -> Merged:
        """What servers have merged of the epoch, by the server with the most rows: another may have been restarted."""
        while True:
            try:
                return Merged.most(self._recorder.at_servers("tally"), self._state.epoch)
            except ConnectionError:  # another one will be there
                time.sleep(RETRY_SECONDS)
                self._crew.wait(lambda: self._coordinator.serving, self._beat)

    def _evaluate(self, split: str, weights: str | None = None) -> Evaluation:
        """The exact figures of one split, with the weights in a file or those of the servers."""
        count = min(self._workers * EVALUATION_PORTIONS, self._dataset.rows(split))
        order = {"kind": "evaluate", "split": split, "weights": weights, "portions": count}
        portions = self._coordinator.deal([{**order, "portion": number} for number in range(count)])
        self._finish(portions)
        found = [portions.results[number] for number in range(count)]
        added = torch.tensor([each["added"] for each in found], dtype=torch.float64).sum(0)
        points = [torch.tensor(each["points"], dtype=torch.float64) for each in found]
        return evaluation_of(added, points, self._task)

    def _beat(self) -> None:
        """Send the caller a sign of life, so that it can check that it owns the run, and messages on checkpoints."""
        self._on_message(0, {"kind": "beat"})
        for message in self._recorder.messages():
            self._on_message(0, message)

    def _send(self, kind: str, **payload: Any) -> None:
        self._on_message(0, {"kind": kind, **payload})


def portions_of(settings: Train, rows: int) -> tuple[int, int]:
    """The steps of a portion of training (the last portion may have fewer), and the portions of an epoch."""
    options = settings.strategy
    assert isinstance(options, SteppingOptions)
    steps = ceil(rows / (settings.batch_size * settings.accumulation))
    size = ceil(min(max(steps // PORTIONS, 1), PORTION_STEPS) / options.period) * options.period
    return size, ceil(steps / size)
