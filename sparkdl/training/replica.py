"""One rank's copy of the model, and one step of it. Runs on ranks."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from sparkdl.collectives import values_of
from sparkdl.data import Batch
from sparkdl.inputs.tensors import answer, moved, stand_in
from sparkdl.models import balance_losses, logits_of
from sparkdl.settings import Train
from sparkdl.training.groups import Groups
from sparkdl.training.recipes.fisher_noise import FisherNoise
from sparkdl.training.recipes.losses import Loss, build_loss
from sparkdl.training.recipes.magnitude_pruning import MagnitudePruning
from sparkdl.training.recipes.recipe import autocast, build_optimizer, takes_gradients
from sparkdl.training.strategies import create_strategy
from sparkdl.training.strategies.keeps_part import SharedPart
from sparkdl.training.tasks import Task

__all__ = [
    "BatchFigures",
    "Replica",
    "back_propagate",
    "clip_gradients",
    "compiled",
    "make_dense",
]


class BatchFigures(NamedTuple):
    """The figures of a batch after its forward pass. Tensors stay on their device until they are read."""

    loss: torch.Tensor
    """The mean over its rows; a scalar."""
    sums: torch.Tensor
    """The sums of the task's figures over the batch's rows, of shape (sum_size,)."""
    rows: int
    weight: torch.Tensor | None
    """The sum of the rows' weights, a scalar; None if all rows count equally."""


class Replica:
    """One rank's copy of the model, with optimizer, loss and strategy."""

    def __init__(
        self,
        model: nn.Module,
        settings: Train,
        task: Task,
        groups: Groups,
        device: torch.device,
        part: SharedPart | None = None,
    ) -> None:
        """``part`` is this rank's part of a shared replica, of which ``model`` is then the module."""
        self.settings, self.task, self.groups, self.device = settings, task, groups, device
        self.loss = build_loss(settings, task, device=device)
        self.part = part
        """This rank's part of a replica that several ranks share; None if each rank has one."""
        self.draws_apart: tuple[int, ...] = ()
        """Keys of its random seed that differ from those of ranks that compute other layers of the same replica."""
        self.strategy = create_strategy(settings, groups, self.part)
        placed = self.strategy.place(model, device)
        self.model, self.optimizer = self.strategy.wrap(placed, partial(build_optimizer, settings))
        self._compiled = compiled(self.model) if settings.compile else None
        self._pruning = MagnitudePruning(settings.sparser, self.model.parameters()) if settings.sparser else None
        noise = settings.gradient_noise
        self.noise = FisherNoise(noise, self.model, settings, self.loss) if noise else None
        self.scaler = torch.amp.GradScaler(device.type, enabled=settings.precision == "float16")
        self.scaler.scale(torch.zeros((), device=device))  # initialises it, because the first step may have no rows

    def pruned(self, before: float, after: float) -> AbstractContextManager[None]:
        """A context for a :meth:`step` from epoch ``before`` to ``after``, with fractions: pruned weights stay 0."""
        return self._pruning.step(before, after) if self._pruning else nullcontext()

    def step(self, batches: list[Batch], *, rate: float) -> list[BatchFigures]:
        """Take one optimizer step over ``accumulation`` batches; returns figures of batches with rows on this rank."""
        self.strategy.begin_step()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        own_rows = sum(len(batch.labels) for batch in batches)
        global_rows = sum(batch.global_rows for batch in batches)
        weight = self.strategy.row_weight(own_rows=own_rows, global_rows=global_rows) if own_rows else 0.0
        if self.noise:
            self.noise.lay(batches, ranks=self.groups.data.size, scaler=self.scaler)
        figures = self._gradients(batches, weight)
        self.strategy.finish_gradients()
        if any(parameter.grad is not None for parameter in self.model.parameters()):
            self._apply_gradients()  # without rows there are none, if the strategy does not exchange gradients
        self.strategy.after_step()
        return figures

    def _gradients(self, batches: list[Batch], weight: float) -> list[BatchFigures]:
        """Add the gradients of a step to those of the parameters; their exchange may begin meanwhile."""
        figures = []
        for batch in batches:
            if batch is batches[-1]:
                self.strategy.begin_last_pass()
            if not len(batch.labels):  # this rank's rows have run out; the others' gradients still arrive
                if self.strategy.needs_all_ranks:
                    self._pass_without_rows(batch)
                continue
            figures.append(
                back_propagate(
                    self.model,
                    batch,
                    self.settings,
                    self.task,
                    loss=self.loss,
                    row_weight=weight,
                    scaler=self.scaler,
                    compiled=self._compiled,
                )
            )
        return figures

    def _pass_without_rows(self, batch: Batch) -> None:
        """Take part in a pass of the other ranks, without changing gradients, running means or random states."""
        self.model.eval()
        inputs = moved(stand_in(batch.inputs), self.device)
        with autocast(self.settings, self.device):
            logits = logits_of(answer(self.model, inputs))
        logits.backward(torch.zeros_like(logits))
        self.model.train()

    @cached_property
    def _takes_sparse(self) -> bool:
        return takes_gradients(self.settings, sparse=True, device=self.device)

    def _apply_gradients(self) -> None:
        if _has_sparse_gradients(self.model) and not self._takes_sparse:
            make_dense(self.model)
        if self.settings.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            clip = self.part.clip_gradients if self.part else partial(clip_gradients, self.model)
            clip(self.settings.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()


def back_propagate(
    model: nn.Module,
    batch: Batch,
    settings: Train,
    task: Task,
    *,
    loss: Loss,
    row_weight: float,
    scaler: torch.amp.GradScaler | None = None,
    compiled: nn.Module | None = None,
) -> BatchFigures:
    """Add the gradient of a batch's loss, with ``row_weight`` for each row, to the gradients of parameters.

    ``compiled`` is the compiled network, which computes in place of ``model``.
    """
    device = next(model.parameters()).device
    inputs = moved(batch.inputs, device)
    labels = batch.labels.to(device, non_blocking=True)
    weights = None if batch.weights is None else batch.weights.to(device, non_blocking=True)
    teacher = None if batch.teacher is None else batch.teacher.to(device, non_blocking=True)
    with autocast(settings, device), _normalised_alone(model, len(labels)), balance_losses() as balance:
        answered = answer(compiled or model, inputs)
        mean = loss(answered, labels, weights, inputs=inputs, teacher=teacher)
    objective = sum(balance, start=mean)
    scaled = scaler.scale(objective) if scaler else objective
    # The gradient of the loss times the weight of these rows, without an extra multiplication.
    scaled.backward(torch.full_like(scaled, len(labels) * row_weight))
    sums = task.sums(logits_of(answered).detach(), labels, weights)
    return BatchFigures(mean.detach(), sums, len(labels), weight=None if weights is None else weights.double().sum())


def compiled(model: nn.Module) -> nn.Module:
    """The network compiled by ``torch.compile``, with the same parameters; compiled at its first call."""
    found: Any = torch.compile(model)
    return found  # type: ignore[no-any-return]


def _has_sparse_gradients(model: nn.Module) -> bool:
    return any(parameter.grad is not None and parameter.grad.is_sparse for parameter in model.parameters())


def clip_gradients(model: nn.Module, largest: float) -> None:
    """Scale gradients down if their total norm is larger, as ``clip_grad_norm_`` does, but also sparse ones."""
    if not _has_sparse_gradients(model):
        nn.utils.clip_grad_norm_(model.parameters(), largest)
        return
    for parameter in model.parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
    values = [values_of(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    factor = (largest / (nn.utils.get_total_norm(values) + 1e-6)).clamp(max=1.0)
    for each in values:
        each.mul_(factor)


def make_dense(model: nn.Module) -> None:
    """Make sparse gradients dense, for code that does not support sparse ones."""
    for parameter in model.parameters():
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()


@contextmanager
def _normalised_alone(model: nn.Module, rows: int) -> Iterator[None]:
    """Let batch normalisation use its running means, as in evaluation, for a single value per channel.

    The last batch of an epoch may have one row on some rank, for which PyTorch would raise an error, as one value has
    no variance. A single image has many values per channel, and is normalised as usual.
    """
    modules = model.modules() if rows == 1 else ()
    training = [module for module in modules if isinstance(module, _BatchNorm) and module.training]
    for module in training:
        module.eval()
    hooks = [module.register_forward_pre_hook(_choose_means, with_kwargs=True) for module in training]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for module in training:
            module.train()


def _choose_means(module: nn.Module, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]) -> None:
    """Runs before each call, since a layer may be called with one value per channel and later with more."""
    values = args[0] if args else next(iter(kwargs.values()))
    module.train(values.numel() != values.size(1))
