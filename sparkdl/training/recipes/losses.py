"""The loss: which one it is, and how much each row counts in it. Runs on ranks; on the driver it is tried."""

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
"""What PyTorch's modules compute, by its name in ``torch.nn.functional``."""
DIVIDED_BY_WEIGHTS = "cross_entropy", "nll_loss"
"""The losses whose mean over a batch is divided by the sum of its rows' class weights, not by their number."""


class Known(NamedTuple):
    """One of PyTorch's own losses."""

    name: str
    """In ``torch.nn.functional``."""
    options: Mapping[str, Any]


def find_loss(chosen: str | Callable[..., Any]) -> Callable[..., Any]:
    """What ``train.loss`` names. Raises :class:`ConfigError` when there is no such thing."""
    if not isinstance(chosen, str):
        return chosen
    if hasattr(functional, chosen):
        loss: Callable[..., Any] = getattr(functional, chosen)
        return loss
    named: Callable[..., Any] = import_object(chosen, key="train.loss", names=["cross_entropy", "nll_loss", "mse_loss"])
    return named


def known(loss: Callable[..., Any]) -> Known | None:
    """Which of PyTorch's losses it is, also as a module or with some options fixed; None for any other."""
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
    """What is minimised: called with what a network answers, labels as a batch has them, and rows' weights or None.

    It returns the mean over the batch, in which a row counts by its weight, times that of its class. A loss that takes
    the batch itself gets the whole answer, and weighs rows as it likes.
    """

    of_batch: Callable[..., torch.Tensor]
    """Of logits and targets, or of an answer and a batch: the mean over the batch."""
    of_rows: Callable[..., torch.Tensor]
    """Of the same: each row's."""
    task: Task
    class_weights: torch.Tensor | None = None
    """By which the loss itself multiplies rows, and divides their mean."""
    ignored: int | None = None
    """The class whose rows it leaves out of both."""
    takes_batch: bool = False
    """Whether it is one of an answer and a batch."""
    teacher: Teacher | None = None
    """How rows are learned from a teacher that has answered them."""

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

        ``inputs`` are those of the batch, where the loss takes that, and ``teacher`` the logits of the teacher that it
        learns from, as a batch has them; without these it is the loss of the labels.
        """
        if self.teacher is None or teacher is None:
            return self._of_labels(answered, labels, weights, inputs)
        by_row = self.task.divergence(logits_of(answered), teacher.float(), self.teacher.temperature)
        weights_of_loss = self.task.loss_weights(labels, weights)
        if weights_of_loss is not None:
            by_row = by_row * weights_of_loss.to(by_row.dtype)
        # Gradients of a softened divergence shrink by the square of the temperature.
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
        """The losses of a batch, each by what its row counts, and what all its rows count: two scalars, float64.

        Added up over batches, the first over the second is the mean over all rows at once. Of a loss that is none of
        PyTorch's, and of rows without weights, its own mean counts as that of so many rows.
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
        """What each row adds to the divisor of the mean loss; None if each adds one."""
        if self.class_weights is None and self.ignored is None:
            return None
        kept = torch.ones_like(targets, dtype=torch.bool) if self.ignored is None else targets != self.ignored
        if self.class_weights is None:
            return kept
        return kept * self.class_weights[targets]


def build_loss(settings: Train, task: Task, *, device: torch.device | str = "cpu", smoothing: bool = True) -> Loss:
    """The loss of outputs on a device, to which what it holds of tensors goes, too.

    ``smoothing`` applies the recipe's label smoothing (not in evaluation). Raises :class:`ConfigError`.
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
    except (TypeError, ValueError):  # of C, without a signature
        return False
    return names[1:2] == ["batch"]


def _placed(value: Any, device: torch.device | str) -> Any:
    """A loss on a device: a module with its parameters and buffers, and what ``functools.partial`` binds likewise."""
    if isinstance(value, nn.Module | torch.Tensor):
        return value.to(device)
    if isinstance(value, partial):
        bound = {name: _placed(each, device) for name, each in value.keywords.items()}
        return partial(_placed(value.func, device), *[_placed(each, device) for each in value.args], **bound)
    return value


def _of_rows(loss: Callable[..., Any]) -> Callable[..., Any]:
    """The same loss without taking a mean; PyTorch's modules are told so, and functions asked."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        alike: Any = copy.copy(loss)
        alike.reduction = "none"
        return alike  # type: ignore[no-any-return]
    return partial(loss, reduction="none")
