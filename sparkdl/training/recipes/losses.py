"""The loss, and the weight of each row in it. Runs on ranks, and on the driver, which tries the loss."""

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from sparkdl.config import import_object
from sparkdl.data import Batch
from sparkdl.errors import ConfigError
from sparkdl.inputs.tensors import Inputs
from sparkdl.models import logits_of
from sparkdl.settings import Train
from sparkdl.settings.teacher import Teacher
from sparkdl.training.tasks import Task
from sparkdl.training.tasks.language_modelling import token_cross_entropy

__all__ = ["Known", "Loss", "build_loss", "find_loss", "known"]

MODULES: dict[type[nn.Module], str] = {
    nn.CrossEntropyLoss: "cross_entropy",
    nn.L1Loss: "l1_loss",
    nn.MSELoss: "mse_loss",
    nn.NLLLoss: "nll_loss",
    nn.PoissonNLLLoss: "poisson_nll_loss",
}
"""PyTorch's loss modules, and the function in ``torch.nn.functional`` that each computes."""
DIVIDED_BY_WEIGHTS = "cross_entropy", "nll_loss"
"""The losses whose mean divides by the sum of the rows' class weights, and not by the number of rows."""


class Known(NamedTuple):
    """One of PyTorch's own losses."""

    name: str
    """The name in ``torch.nn.functional``."""
    options: Mapping[str, Any]


def find_loss(chosen: str | Callable[..., Any]) -> Callable[..., Any]:
    """The loss function that ``train.loss`` names. Raises :class:`ConfigError` if it does not exist."""
    if not isinstance(chosen, str):
        return chosen
    if hasattr(functional, chosen):
        loss: Callable[..., Any] = getattr(functional, chosen)
        return loss
    named: Callable[..., Any] = import_object(chosen, key="train.loss", names=["cross_entropy", "nll_loss", "mse_loss"])
    return named


def known(loss: Callable[..., Any]) -> Known | None:
    """The name and options of a loss of PyTorch, as a function, a module or a partial; None for other losses."""
    if isinstance(loss, partial):
        inner = known(loss.func) if not loss.args else None
        return inner and Known(inner.name, {**inner.options, **loss.keywords})
    if isinstance(loss, nn.Module):
        name = MODULES.get(type(loss))
        return Known(name, vars(loss) | loss._buffers) if name else None
    name = getattr(loss, "__name__", "")
    return Known(name, {}) if name and getattr(functional, name, None) is loss else None


@dataclass(frozen=True)
class Loss:
    """The loss that training minimises; it takes a network's outputs, a batch's labels, and weights of rows or None.

    It returns the mean over the batch, where a row counts by its weight times the weight of its class. A loss that
    takes a batch gets all named outputs and the batch, and decides by itself how rows count.
    """

    of_batch: Callable[..., torch.Tensor]
    """Takes logits and targets, or all outputs and a batch; returns the mean over the batch."""
    of_rows: Callable[..., torch.Tensor]
    """Takes the same; returns the loss of each row."""
    task: Task
    class_weights: torch.Tensor | None = None
    """Class weights within the loss function: its mean divides by their sum over rows."""
    ignored: int | None = None
    """The class whose rows the loss function ignores."""
    takes_batch: bool = False
    """Whether the loss takes all outputs and a batch."""
    teacher: Teacher | None = None
    """The settings of distillation, for rows that have a teacher's logits."""

    def __call__(
        self,
        answered: Any,
        labels: torch.Tensor,
        weights: torch.Tensor | None = None,
        *,
        inputs: Inputs | None = None,
        teacher: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The mean over the batch, a scalar.

        ``inputs`` are the batch's inputs; a loss that takes a batch needs them. ``teacher`` has the teacher's logits
        of the batch; without them, the loss uses only the labels.
        """
        if self.teacher is None or teacher is None:
            return self._of_labels(answered, labels, weights, inputs)
        by_row = self.task.divergence(logits_of(answered), teacher.float(), self.teacher.temperature)
        weights_of_loss = self.task.loss_weights(labels, weights)
        if weights_of_loss is not None:
            by_row = by_row * weights_of_loss.to(by_row.dtype)
        # The gradients of a divergence with temperature T are smaller by T².
        learned = self.teacher.weight * self.teacher.temperature**2 * by_row.mean()
        if self.teacher.weight == 1:
            return learned
        return learned + (1 - self.teacher.weight) * self._of_labels(answered, labels, weights, inputs)

    def _of_labels(
        self, answered: Any, labels: torch.Tensor, weights: torch.Tensor | None, inputs: Inputs | None
    ) -> torch.Tensor:
        if self.takes_batch:
            return self._of_whole_batch(answered, labels, weights, inputs)
        outputs = logits_of(answered)
        targets, weights = self.task.targets(labels), self.task.loss_weights(labels, weights)
        if weights is None:
            return self.of_batch(outputs, targets)
        by_row = self._by_row(outputs, targets, len(weights))
        weights = weights.to(by_row.dtype)
        shares = self._shares(targets)
        if shares is None:
            return (by_row * weights).mean()
        divisor = (shares * weights).sum().clamp(min=torch.finfo(by_row.dtype).tiny)
        return (by_row * weights).sum() / divisor * weights.mean()

    def add_up(
        self, answered: Any, labels: torch.Tensor, weights: torch.Tensor | None, *, inputs: Inputs | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The weighted sum of a batch's losses, and the sum of their weights: two scalars, float64.

        With both added up over batches, the first divided by the second is the mean over all rows. For rows without
        weights, the first is the loss function's mean times the sum of weights; that sum is the number of rows, unless
        the loss is one of PyTorch's with class weights or an ignored class.
        """
        if self.takes_batch:
            mean = self._of_whole_batch(answered, labels, weights, inputs).double()
            return mean * len(labels), mean.new_tensor(len(labels))
        outputs = logits_of(answered)
        targets, weights = self.task.targets(labels), self.task.loss_weights(labels, weights)
        shares = self._shares(targets)
        if weights is None:
            mean = self.of_batch(outputs, targets).double()
            total = mean.new_tensor(len(labels)) if shares is None else shares.double().sum()
            return mean * total, total
        weights = weights.double()
        counted = weights if shares is None else weights * shares
        return (self._by_row(outputs, targets, len(weights)).double() * weights).sum(), counted.sum()

    def _of_whole_batch(
        self, answered: Any, labels: torch.Tensor, weights: torch.Tensor | None, inputs: Inputs | None
    ) -> torch.Tensor:
        assert inputs is not None
        return self.of_batch(answered, Batch(inputs, labels, len(labels), weights))

    def _by_row(self, outputs: torch.Tensor, targets: torch.Tensor, rows: int) -> torch.Tensor:
        return self.of_rows(outputs, targets).reshape(rows, -1).mean(dim=1)

    def _shares(self, targets: torch.Tensor) -> torch.Tensor | None:
        """How much each row adds to the divisor of the mean loss; None if each row adds one."""
        if self.class_weights is None and self.ignored is None:
            return None
        kept = torch.ones_like(targets, dtype=torch.bool) if self.ignored is None else targets != self.ignored
        if self.class_weights is None:
            return kept
        return kept * self.class_weights[targets]


def build_loss(settings: Train, task: Task, *, device: torch.device | str = "cpu", smoothing: bool = True) -> Loss:
    """The loss for outputs on a device; tensors that belong to the loss are moved there.

    ``smoothing`` applies the recipe's label smoothing; evaluation leaves it out. Raises :class:`ConfigError` if the
    loss does not exist or does not work with the other settings.
    """
    chosen = settings.loss or task.loss
    loss = _placed(find_loss(chosen), device)
    if smoothing and settings.label_smoothing:
        if loss is not functional.cross_entropy and loss is not token_cross_entropy:
            raise ConfigError(f"train.label_smoothing works with the loss 'cross_entropy', not with {chosen!r}")
        loss = partial(loss, label_smoothing=settings.label_smoothing)
    takes_batch = _takes_batch(loss)
    if takes_batch and settings.class_weights:
        raise ConfigError(
            f"train.class_weights: the loss {chosen!r} takes the batch and weighs rows itself; leave one of them out"
        )
    found = known(loss)
    options = found.options if found and found.name in DIVIDED_BY_WEIGHTS and task.name == "classification" else {}
    ignored = options.get("ignore_index", -1)
    return Loss(
        loss,
        _of_rows(loss),
        task,
        class_weights=options.get("weight"),
        ignored=ignored if ignored >= 0 else None,
        takes_batch=takes_batch,
        teacher=settings.teacher,
    )


def _takes_batch(loss: Callable[..., Any]) -> bool:
    """Whether the second argument of a loss is called ``batch``."""
    try:
        names = list(inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters)
    except (TypeError, ValueError):  # a function of C has no signature
        return False
    return names[1:2] == ["batch"]


def _placed(value: Any, device: torch.device | str) -> Any:
    """A loss with all its tensors on a device: those of a module, and those that ``functools.partial`` binds."""
    if isinstance(value, nn.Module | torch.Tensor):
        return value.to(device)
    if isinstance(value, partial):
        bound = {name: _placed(each, device) for name, each in value.keywords.items()}
        return partial(_placed(value.func, device), *[_placed(each, device) for each in value.args], **bound)
    return value


def _of_rows(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The same loss with the reduction "none": set as an attribute of a module, or passed to a function."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        alike: Any = copy.copy(loss)
        alike.reduction = "none"
        return alike  # type: ignore[no-any-return]
    return partial(loss, reduction="none")
