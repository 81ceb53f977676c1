"""Tries a training step on the driver before anything starts, so that errors of the network appear early."""

import copy
import logging
from typing import Any

import torch
from torch import nn

from sparkdl.data import Batch
from sparkdl.errors import ConfigError, ModelError
from sparkdl.inputs.tensors import Inputs, answer, count_rows, like
from sparkdl.models import copied_network, full_state, load_full_state, logits_of, name_of, named_outputs
from sparkdl.settings import Train
from sparkdl.settings.strategies import AllReduceOptions, AsynchronousOptions, PostLocalSGDOptions
from sparkdl.training.recipes.losses import build_loss
from sparkdl.training.recipes.recipe import takes_gradients
from sparkdl.training.replica import back_propagate, compiled
from sparkdl.training.tasks import Task

__all__ = ["check_trained", "try_training"]

log = logging.getLogger(__name__)


def check_trained(model: nn.Module, answered: Any, loss: torch.Tensor, settings: Train) -> None:
    """Raise :class:`ModelError` unless a network's outputs and their loss depend on parameters that are trained."""
    name = name_of(settings.model)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ModelError(f"the model {name!r} has no trained parameter: none has requires_grad")
    if not any(output.requires_grad for output in named_outputs(answered).values()):
        raise ModelError(
            f"the outputs of the model {name!r} do not depend on its trained parameters: look in its forward() for"
            " detach(), torch.no_grad() or argmax()"
        )
    if not loss.requires_grad:
        raise ModelError(
            f"the loss {settings.loss!r} is detached from the network's outputs, so that nothing can be learned from"
            " it: look in it for detach(), item(), argmax() or NumPy"
        )


def try_training(model: nn.Module, rows: Inputs, settings: Train, task: Task, *, weighted: bool) -> None:
    """Train a copy of a network on a batch of two rows, and on one of one row, as a rank's last batch may be.

    ``rows`` are examples of the network's inputs. Raises :class:`ModelError` if training fails, if buffers change their
    shapes, or if the network changes attributes that are neither parameters nor buffers, because checkpoints do not
    have them. Raises :class:`ConfigError` for an optimizer that cannot step on the network's gradients.
    """
    name = name_of(settings.model)
    # In float32, because the driver may have no GPU; with a copy of the loss, because a loss may count its calls.
    settings = settings.model_copy(update={"precision": "float32", "loss": _copied_loss(settings.loss)})
    with torch.random.fork_rng(devices=[]):
        tried = copied_network(model, name).train()
        shapes = {key: value.shape for key, value in full_state(tried).items()}
        losses = [_step(tried, _some_rows(rows, count), settings, task, weighted=weighted) for count in (2, 1)]
        if losses[0].isfinite() and not losses[1].isfinite():
            raise ModelError(
                f"the loss of the model {name!r} is {float(losses[1])} for a batch of one row, which the last one of an"
                " epoch may be: look for a deviation or a correlation over the rows of a batch"
            )
        if all(each.grad is None for each in tried.parameters() if each.requires_grad):
            raise ModelError(f"the loss {settings.loss!r} does not depend on any trained parameter of {name!r}")
        if not takes_gradients(settings, sparse=False) and not _all_sparse(tried):
            raise ConfigError(
                f"train.optimizer: {settings.optimizer!r} cannot use dense gradients in step() without a closure;"
                " choose one that needs no closure and supports dense gradients (sparse_adam supports both kinds)"
            )
        _tell_of_dense_gradients(tried, settings)
        for key, value in full_state(tried).items():
            if shapes.get(key) != value.shape:
                raise ModelError(
                    f"the buffer {key!r} of the model {name!r} changes its shape in training, so that ranks cannot"
                    " average it: register it with its final shape, or compute it in forward()"
                )
        _check_memory(model, tried, _some_rows(rows, 2), name)
        if settings.compile:
            _try_compiling(tried.train(), _some_rows(rows, 2), settings)


def _tell_of_dense_gradients(model: nn.Module, settings: Train) -> None:
    """Warn if the run will make sparse gradients dense, and say which setting is the reason.

    ``model`` has gradients of a backward pass.
    """
    tables = [name for name, each in model.named_parameters() if each.grad is not None and each.grad.is_sparse]
    if not tables:
        return
    strategy, because = settings.strategy, ""
    if isinstance(strategy, AsynchronousOptions):
        because = f"workers of train.strategy {strategy.model_dump()['kind']} know no others"
    elif settings.gradient_noise:
        because = "train.gradient_noise is added to all weights"
    elif isinstance(strategy, AllReduceOptions) and strategy.compression:
        because = "train.strategy.compression makes messages of whole gradients"
    elif isinstance(strategy, AllReduceOptions | PostLocalSGDOptions) and strategy.topology != "ring":
        because = f"train.strategy.topology {strategy.topology} adds up whole gradients"
    elif not takes_gradients(settings, sparse=True):
        because = f"train.optimizer {settings.optimizer!r} with its options and train.weight_decay takes no others"
    if because:
        log.warning(
            "the sparse gradients of %s are made dense, since %s: each step goes over the whole table. All-reduce"
            " without compression and the optimizers sgd, sparse_adam and torch.optim:Adagrad keep them sparse",
            ", ".join(tables),
            because,
        )


def _copied_loss(loss: Any) -> Any:
    """A copy of the user's loss, which may have state; the loss itself if it cannot be copied."""
    try:
        return copy.deepcopy(loss)
    except Exception:  # whatever an object raises that cannot be copied
        return loss


def _step(model: nn.Module, rows: Inputs, settings: Train, task: Task, *, weighted: bool) -> torch.Tensor:
    count = count_rows(rows)
    labels = task.some_labels(rows)
    weights = torch.ones(len(labels)) if weighted else None  # in ranking, one weight for each group
    teacher = torch.randn(len(labels), task.outputs).half() if settings.teacher else None
    batch = Batch(rows, labels, count, weights, teacher)
    try:
        return back_propagate(model, batch, settings, task, loss=build_loss(settings, task), row_weight=1 / count).loss
    except Exception as error:  # whatever a network may raise
        rows_tried = "two rows" if count > 1 else "one row, as the last batch of an epoch may be"
        hint = "" if count > 1 else ". Of torch.nn, GroupNorm and LayerNorm take one, BatchNorm with running statistics"
        raise ModelError(
            f"the model {name_of(settings.model)!r} with its loss fails in training on {rows_tried}:"
            f" {type(error).__name__}: {(str(error).splitlines() or [''])[0]}{hint}"
        ) from error


def _try_compiling(model: nn.Module, rows: Inputs, settings: Train) -> None:
    """Raise :class:`ConfigError` if PyTorch cannot compile a network."""
    try:
        with torch.enable_grad():
            logits_of(answer(compiled(model), rows)).float().sum().backward()
    except Exception as error:  # whatever the compiler, or what it calls, may raise
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        raise ConfigError(
            f"train.compile: PyTorch cannot compile the model {name_of(settings.model)!r} here"
            f" ({type(error).__name__}: {lines[0]}); leave it out, or install a C++ compiler if it lacks one"
        ) from None


def _check_memory(model: nn.Module, tried: nn.Module, rows: Inputs, name: str) -> None:
    """Raise :class:`ModelError` unless a new network has the outputs of ``tried`` once it has loaded its state."""
    fresh = copied_network(model, name).eval()
    load_full_state(fresh, full_state(tried))
    with torch.no_grad():
        answers = []
        for network in (tried.eval(), fresh):
            torch.manual_seed(0)
            answers.append(logits_of(answer(network, rows)))
    if not torch.allclose(answers[0], answers[1], rtol=1e-3, atol=1e-4, equal_nan=True):
        changed = sorted(_plain_attributes(tried, fresh))
        raise ModelError(
            f"training changes state of the model {name!r} that is neither a parameter nor a buffer"
            f" ({', '.join(changed) or 'outside of its modules'}), so that checkpoints lack it: use register_buffer()"
        )


def _plain_attributes(one: nn.Module, other: nn.Module) -> set[str]:
    """The attributes with numbers or tensors, other than parameters and buffers, that differ between two networks."""
    theirs = dict(other.named_modules())
    found = set()
    for place, module in one.named_modules():
        for key, value in vars(module).items():
            before = vars(theirs[place]).get(key) if place in theirs else None
            if isinstance(value, torch.Tensor):
                same = (
                    isinstance(before, torch.Tensor) and value.shape == before.shape and bool((value == before).all())
                )
            else:
                same = not isinstance(value, int | float) or value == before
            if not same and key != "training":
                found.add(f"{place}.{key}" if place else key)
    return found


def _all_sparse(model: nn.Module) -> bool:
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    return all(gradient.is_sparse for gradient in gradients)


def _some_rows(rows: Inputs, count: int) -> Inputs:
    """Random rows: floating-point numbers from 0 to 1 (valid as categories, too), bytes of images from 0 to 255.

    Ids are between 0 and the largest id in ``rows``, which the first row has. Masks are not changed.
    """

    def drawn(tensor: torch.Tensor) -> torch.Tensor:
        shape = (count, *tensor.shape[1:])
        if tensor.dtype == torch.bool:
            return tensor[:count]
        if tensor.is_floating_point():
            return torch.rand(shape, dtype=tensor.dtype)
        if tensor.dtype == torch.uint8:
            return torch.randint(0, 256, shape, dtype=tensor.dtype)
        ids = torch.randint(0, int(tensor.max()) + 1, shape, dtype=tensor.dtype)
        ids[0] = tensor.max()
        return ids

    return like(rows, drawn)
