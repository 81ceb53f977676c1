"""A worker's part in Sandblaster: the gradient over one portion of the rows. Runs in a task."""

import time
from typing import Any

import torch
from torch import nn

from sparkdl.data import Loader
from sparkdl.parameters import ParameterClient, Push
from sparkdl.settings import Train
from sparkdl.training.asynchronous.exchange import shared_buffers
from sparkdl.training.recipes.losses import Loss
from sparkdl.training.recipes.recipe import build_optimizer
from sparkdl.training.replica import back_propagate, make_dense
from sparkdl.training.reports.stopwatch import RankTimes
from sparkdl.training.tasks import Task

__all__ = ["PortionGradient"]


class PortionGradient:
    """Fetches the servers' values once for each evaluation, and pushes the gradients of portions to them.

    The model computes as in evaluation, without dropout, so that the loss is a function of the weights alone. On
    machines of one kind with equally many threads, every worker computes the same bits for a portion.
    """

    def __init__(self, model: nn.Module, client: ParameterClient, settings: Train, task: Task, loss: Loss) -> None:
        self._model, self._client, self._settings, self._task = model, client, settings, task
        self._loss = loss
        self._trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._decays = build_optimizer(settings, model).param_groups
        """The optimizer's groups: which parameters have weight decay, and how much."""
        self._evaluation = -1
        self._versions: list[int] = []

    def push(self, order: dict[str, Any], loader: Loader, *, rows: int, waited: float) -> dict[str, Any]:
        """Push a portion's share of the gradient of the mean loss over all ``rows``; returns its share of the loss.

        Weight decay is shared among portions by their rows, too. ``waited`` are the seconds without work before it.
        """
        started, moved = time.perf_counter(), self._client.bytes_moved
        if order["evaluation"] != self._evaluation:
            self._versions = self._client.pull()
            self._client.copy_to({**self._trained, **shared_buffers(self._model)})
            self._evaluation = order["evaluation"]
        fetched = time.perf_counter()
        loss, figures = self._add_up(loader, rows)
        computed = time.perf_counter()
        gradients = {name: each.grad for name, each in self._trained.items() if each.grad is not None}
        self._client.push(gradients, Push(self._evaluation, order["portion"], 0, 0, 0.0, ()), self._versions)
        exchanging = fetched - started + time.perf_counter() - computed
        times = RankTimes(0.0, computed - fetched, exchanging, waited, 0.0, 1, self._client.bytes_moved - moved)
        return {"loss": loss, "figures": figures, "times": times}

    def _add_up(self, loader: Loader, rows: int) -> tuple[float, list[float]]:
        """Compute the gradients; returns the share of the loss, and the sums of figures, rows' weight and number."""
        self._model.eval()
        self._model.zero_grad()
        loss, sums, weight, seen = 0.0, [0.0] * self._task.sum_size, 0.0, 0
        for batch in loader.epoch(0):
            if len(batch.labels):
                figures = back_propagate(
                    self._model, batch, self._settings, self._task, loss=self._loss, row_weight=1 / rows
                )
                loss += float(figures.loss) * figures.rows / rows
                sums = [a + b for a, b in zip(sums, figures.sums.tolist(), strict=True)]
                weight += figures.rows if figures.weight is None else float(figures.weight)
                seen += figures.rows
        make_dense(self._model)
        return loss + self._decay(seen / rows), [*sums, weight, float(seen)]

    @torch.no_grad()
    def _decay(self, share: float) -> float:
        loss = 0.0
        for group in self._decays:
            factor = share * group["weight_decay"]
            for parameter in group["params"] if factor else ():
                loss += factor / 2 * float(parameter.double().square().sum())
                share_of_decay = parameter * factor
                parameter.grad = share_of_decay if parameter.grad is None else parameter.grad + share_of_decay
        return loss
