"""A worker: asks for portions of work and does them at its own pace. Runs in a task."""

import copy
import itertools
import math
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from functools import partial
from math import ceil
from typing import Any

import torch
from pyspark import TaskContext
from torch import nn

from sparkdl.cluster import device_of_task, limited_threads, retained_memory
from sparkdl.data import Batch, Loader
from sparkdl.errors import TrainingError
from sparkdl.models import full_state, load_full_state
from sparkdl.parameters import ParameterClient, Push
from sparkdl.settings.strategies import AsynchronousOptions, DownpourOptions, SteppingOptions
from sparkdl.training.asynchronous.exchange import ServerExchange, StepNote
from sparkdl.training.asynchronous.line import Invitation, Line
from sparkdl.training.asynchronous.methods import create_exchange
from sparkdl.training.asynchronous.portion_gradient import PortionGradient
from sparkdl.training.asynchronous.serve import partition_of, starting_model
from sparkdl.training.checkpoints.checkpoint import save_best
from sparkdl.training.checkpoints.parted_checkpoint import best_weights
from sparkdl.training.checkpoints.random_states import seed_everything
from sparkdl.training.checkpoints.state import copied
from sparkdl.training.evaluation import add_up
from sparkdl.training.job import Job
from sparkdl.training.recipes.batching import evaluation_batch
from sparkdl.training.recipes.losses import build_loss
from sparkdl.training.recipes.recipe import autocast, build_optimizer, rate_at
from sparkdl.training.replica import BatchFigures, back_propagate, make_dense
from sparkdl.training.reports.stopwatch import RankTimes
from sparkdl.training.task_to_train import task_to_train

__all__ = ["work"]


def work(job: Job, invitation: Invitation, number: int, *, servers: int, workers: int) -> list[str]:
    """Do portions until the coordinator has no more, as worker ``number`` of at most ``workers``.

    Exceptions are reported to the coordinator.
    """
    context = TaskContext.get()
    device = torch.device(device_of_task(context) if context else "cpu")
    threads = context.cpus() if context else 1
    with (
        Line(invitation, "worker", number) as line,
        limited_threads(threads),
        retained_memory(),
        closing(_Worker(job, line, device, servers=servers, workers=workers)) as worker,
    ):
        worker.run()
    return []


class _Worker:
    """One worker with its replica."""

    def __init__(self, job: Job, line: Line, device: torch.device, *, servers: int, workers: int) -> None:
        self._job, self._line, self._device = job, line, device
        self._settings, self._dataset = job.settings, job.dataset
        assert isinstance(job.settings.strategy, AsynchronousOptions)
        self._options = job.settings.strategy
        self._model = starting_model(job).to(device)
        seed_everything(job.settings.seed, 0, 1 + line.number)  # weights are equal, dropout differs
        self._evaluated: nn.Module | None = None
        self._task = task_to_train(job.dataset.card, job.settings)
        self._loss = build_loss(job.settings, self._task, device=device)
        self._partition = partition_of(self._model, self._options, servers)
        self._client = ParameterClient(
            self._partition, line.invitation.credentials, line, timeout=line.invitation.patience
        )
        self._exchange: ServerExchange | None = None
        if isinstance(self._options, SteppingOptions):
            self._exchange = create_exchange(
                self._options,
                self._model,
                self._client,
                partial(build_optimizer, job.settings, self._model),
                workers=workers,
                pace=_Clock(line) if self._options.staleness is not None else None,
            )
        self._gradient = PortionGradient(self._model, self._client, job.settings, self._task, self._loss)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sparkdl-next")

    def run(self) -> None:
        """Do one portion after another, until :class:`RunEnded` is raised.

        The next portion is requested during the current one, except where holding a portion would make others wait.
        """
        ahead = isinstance(self._options, SteppingOptions) and self._options.staleness is None
        asked = self._ask()
        wait([asked])  # waiting for the other tasks to start is no part of the first portion's time
        while True:
            started = time.perf_counter()
            found = asked.result()
            waited = time.perf_counter() - started
            if ahead:
                asked = self._ask()
            order = found["order"]
            result: Any
            match order["kind"]:
                case "train":
                    result = self._train(order, waited)
                case "gradient":
                    result = self._add_to_gradient(order, waited)
                case "evaluate":
                    result = self._evaluate(order)
                case "keep_best":
                    result = self._keep_best(order)
            where = {"deal": found["deal"], "portion": found["portion"]}
            if result is None:
                self._line.tell("give_back", **where)
            else:
                self._line.tell("finish", **where, result=result)
            if not ahead:
                asked = self._ask()

    def close(self) -> None:
        """End threads and connections."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        if self._exchange:
            self._exchange.close()
        self._client.close()

    def _ask(self) -> "Future[dict[str, Any]]":
        return self._thread.submit(self._line.ask, "next")

    def _train(self, order: dict[str, Any], waited: float) -> dict[str, Any] | None:
        """Train on the rows of a portion; None if another worker has finished it first."""
        settings, options, exchange = self._settings, self._options, self._exchange
        assert isinstance(options, SteppingOptions) and exchange
        spent = _TimeSpent(exchange, self._client)
        loader = self._loader("train", order, settings.batch_size)
        steps = ceil(loader.steps / settings.accumulation)
        last = ceil(ceil(loader.rows(order["epoch"]) / settings.batch_size) / settings.accumulation)
        pushed = self._client.applied(order["epoch"], order["portion"]) if order["again"] else 0
        first = (order["epoch"] * order["portions"] + order["portion"]) * steps
        figures, rate = [0.0] * (3 + self._task.sum_size), 0.0
        batches = spent.loading(loader.epoch(order["epoch"], pushed * options.period * settings.accumulation))
        self._model.train()
        for number, group in enumerate(_grouped(batches, settings.accumulation), pushed * options.period):
            rate = rate_at(
                settings,
                first + number,
                steps_per_epoch=order["portions"] * steps,
                size=self._job.reference,
            )
            exchange.begin_step()
            sums = self._gradients(group)
            completed = (number + 1) % options.period == 0 or number + 1 == last
            push = Push(order["epoch"], order["portion"], number // options.period, 0, rate, ())
            exchange.finish_step(StepNote(rate, (*sums, 1.0), push if completed else None))
            spent.steps += 1
            figures = [a + b for a, b in zip(figures, sums, strict=True)]
            if not exchange.counted:
                break
        exchange.finish()
        if not exchange.counted:
            exchange.counted = True
            return None
        told = {"step": first, "figures": figures, "rate": rate, "steps": spent.steps}
        return {"worker": self._line.number, "times": spent.times(waited), **told}

    def _add_to_gradient(self, order: dict[str, Any], waited: float) -> dict[str, Any]:
        """Push a portion's share of the gradient over the whole split."""
        loader = self._loader("train", order, self._settings.batch_size, shuffle=False)
        share = self._gradient.push(order, loader, rows=self._dataset.rows("train"), waited=waited)
        return {"worker": self._line.number, **share}

    def _gradients(self, batches: list[Batch]) -> list[float]:
        """Compute a step's gradients; returns its summed loss, the sums of figures, and the rows' weight and number."""
        settings, model = self._settings, self._model
        model.zero_grad()
        rows = sum(len(batch.labels) for batch in batches)
        figures: list[BatchFigures] = [
            back_propagate(model, batch, settings, self._task, loss=self._loss, row_weight=1 / rows)
            for batch in batches
            if len(batch.labels)
        ]
        make_dense(model)
        if settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        if isinstance(self._options, DownpourOptions) and settings.weight_decay:
            for parameter in model.parameters():
                if parameter.grad is not None and parameter.ndim > 1:
                    parameter.grad.add_(parameter.detach(), alpha=settings.weight_decay)
        loss = sum(float(each.loss) * each.rows for each in figures)
        if not math.isfinite(loss):
            raise TrainingError(
                f"the loss is {loss} (worker {self._line.number}); training has stopped and the last good checkpoint is"
                " kept. Try a smaller learning_rate, warmup_epochs, clip_norm or float32, and look for extreme values"
                " in the features"
            )
        sums = torch.stack([each.sums for each in figures]).sum(dim=0).tolist()
        weight = sum(each.rows if each.weight is None else float(each.weight) for each in figures)
        return [loss, *map(float, sums), float(weight), float(rows)]

    def _evaluate(self, order: dict[str, Any]) -> dict[str, Any]:
        """Evaluate the rows of a portion of a split, with the servers' weights or those in a file."""
        batch_size = evaluation_batch(self._settings, self._task)
        found = add_up(
            self._pulled(order["weights"]),
            self._loader(order["split"], order, batch_size, shuffle=False).epoch(0),
            task=self._task,
            loss=build_loss(self._settings, self._task, device=self._device, smoothing=False),
            device=self._device,
            context=autocast(self._settings, self._device),
            parts=order["portions"],
        )
        return {name: tensor.tolist() for name, tensor in found._asdict().items()}

    def _keep_best(self, order: dict[str, Any]) -> dict[str, Any]:
        """Write the servers' weights as the best ones; returns the file's description."""
        weights = copied(full_state(self._pulled(None)))
        return save_best(self._job.folder, weights, step=order["step"], epoch=order["epoch"]).model_dump()

    def _pulled(self, file: str | None) -> nn.Module:
        """A second model, with the servers' weights or those in a file; the trained one stays as it is."""
        model = self._evaluated = self._evaluated or copy.deepcopy(self._model)
        if file:
            load_full_state(model, best_weights(file, self._device))
        else:
            self._client.pull()
            self._client.copy_to(full_state(model))
        return model

    def _loader(self, split: str, order: dict[str, Any], batch_size: int, *, shuffle: bool = True) -> Loader:
        """A loader of a portion's rows: those that rank ``portion`` of ``portions`` ranks would read."""
        return Loader(
            self._dataset,
            split,
            batch_size=batch_size,
            rank=order["portion"],
            size=order["portions"],
            seed=self._settings.seed,
            shuffle=shuffle,
        )


class _Clock:
    """A worker's clock, which the coordinator compares with those of the others."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def advance(self, count: int) -> None:
        if count:
            self._line.tell("advance", count=count)

    def wait(self) -> None:
        self._line.ask("keep_pace")


class _TimeSpent:
    """Measures how the time of a portion is spent."""

    def __init__(self, exchange: ServerExchange, client: ParameterClient) -> None:
        self._exchange, self._client = exchange, client
        self._started = time.perf_counter()
        self._before = exchange.seconds_exchanging, exchange.seconds_held, client.bytes_moved
        self._loading = 0.0
        self.steps = 0

    def loading(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The same batches, timed."""
        while True:
            started = time.perf_counter()
            batch = next(batches, None)
            self._loading += time.perf_counter() - started
            if batch is None:
                return
            yield batch

    def times(self, waited: float) -> RankTimes:
        """The times so far; ``waited`` are the seconds without work before the portion."""
        exchanging, held, moved = (
            now - before
            for now, before in zip(
                (self._exchange.seconds_exchanging, self._exchange.seconds_held, self._client.bytes_moved),
                self._before,
                strict=True,
            )
        )
        computing = time.perf_counter() - self._started - self._loading - exchanging - held
        return RankTimes(self._loading, computing, exchanging, held + waited, 0.0, self.steps, moved)


def _grouped(batches: Iterator[Batch], count: int) -> Iterator[list[Batch]]:
    """The batches of each optimizer step that have rows."""
    filled = (batch for batch in batches if len(batch.labels))
    while group := list(itertools.islice(filled, count)):
        yield group
