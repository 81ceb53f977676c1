"""Tries a network on two rows before anything expensive starts, so that errors do not appear after hours.

Runs on the driver.
"""

import io
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from sparkdl.data import Batch, Dataset
from sparkdl.errors import ConfigError, ModelError
from sparkdl.inputs.tensors import Inputs, answer, count_rows
from sparkdl.layouts import check_may_be_sharded
from sparkdl.models import (
    Reference,
    TracedNetwork,
    full_state,
    name_of,
    named_outputs,
    tensors_on_disk,
    try_network,
)
from sparkdl.settings import Train
from sparkdl.settings.averaging import CompressedAveraging
from sparkdl.settings.strategies import ISTOptions, ResISTOptions
from sparkdl.training.checkpoints.state import copied
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.checks.trial import check_trained, try_training
from sparkdl.training.network_to_train import build_hollow_model, build_model
from sparkdl.training.output_columns import shapes_of_outputs
from sparkdl.training.recipes.fisher_noise import check_rows_apart
from sparkdl.training.recipes.losses import build_loss
from sparkdl.training.recipes.recipe import build_optimizer
from sparkdl.training.strategies.plain_stacks import check_draws, narrowed, ownership_of, recorded_draws
from sparkdl.training.strategies.residual_blocks import check_blocks
from sparkdl.training.strategies.symmetry import check_counts, check_sub_networks
from sparkdl.training.task_to_train import task_to_train
from sparkdl.training.tasks import Task
from sparkdl.training.traced_network import trace

__all__ = ["check_model", "tried_model"]

_TRAINED = torch.float16, torch.float32, torch.float64


def check_model(dataset: Dataset, settings: Train, *, ranks: int = 1) -> nn.Module:
    """The same as :func:`tried_model`, but returns the network only."""
    return tried_model(dataset, settings, ranks=ranks)[0]


def tried_model(
    dataset: Dataset, settings: Train, *, ranks: int = 1, export: bool = True, on_disk: bool = False
) -> tuple[nn.Module, TracedNetwork | Reference | None]:
    """Build the network, and try loss, optimizer, strategy and export on two rows.

    Returns the network and its trace. If the network cannot be exported, a reference to the code that builds it takes
    the place of the trace. There is no trace with ``train.strategy.sharded``, or without ``export``, which takes the
    longest. ``on_disk`` keeps the weights on disk and not in memory. Raises :class:`ModelError` or
    :class:`ConfigError`.
    """
    if settings.in_parts == "strategy.sharded":
        network = _hollow_model(dataset, settings, ranks=ranks)
        # Few neurons in the hidden layers are enough to try.
        narrow = narrowed(network, ownership_of(network, seed=settings.seed))
        _try(narrow, dataset, settings, ranks=ranks)
        if export:
            trace(narrow, dataset, settings)
        return network.train(), None
    with tensors_on_disk() if settings.in_parts or on_disk else nullcontext():  # gradients, too
        model = build_model(dataset, settings)
        _try(model, dataset, settings, ranks=ranks)
    return model.train(), trace(model, dataset, settings) if export else None


def _try(model: nn.Module, dataset: Dataset, settings: Train, *, ranks: int) -> None:
    """Run a forward pass and a training step, and check that the strategy works with the network."""
    _check_types(model, settings)
    if settings.in_parts == "strategy.shard":
        check_may_be_sharded(model)
    rows = some_rows(dataset)
    task, weighted = task_to_train(dataset.card, settings), dataset.card.mean_weight is not None
    answered = answer(model.eval(), rows)
    shapes_of_outputs(answered, settings.outputs, model=name_of(settings.model))
    check_trained(model, answered, _try_loss(answered, rows, settings, task, weighted=weighted), settings)
    try_training(model, rows, settings, task, weighted=weighted or settings.class_weights is not None)
    _check_state(build_optimizer(settings, model), settings)
    if settings.gradient_noise:
        _check_noise(model.train(), rows, settings, dataset, ranks=ranks)
        model.eval()
    if isinstance(settings.strategy, ISTOptions) and not settings.in_parts:
        check_sub_networks(model, rows, settings.strategy.layers, ranks=ranks)
    if isinstance(settings.strategy, ResISTOptions):
        check_blocks(model, rows, settings.strategy.blocks, ranks=ranks)


def _hollow_model(dataset: Dataset, settings: Train, *, ranks: int) -> nn.Module:
    """The network without weights. Raises :class:`ModelError` if it cannot be sharded."""
    with recorded_draws() as drawn:
        network = build_hollow_model(dataset, settings)
    ownership = ownership_of(network, seed=settings.seed)
    check_counts(ownership.counts, ranks=ranks)
    check_draws(network, drawn)
    outputs = task_to_train(dataset.card, settings).outputs
    try_network(narrowed(network, ownership), settings.model, some_rows(dataset), outputs)
    return network


def _try_loss(answered: Any, rows: Inputs, settings: Train, task: Task, *, weighted: bool) -> torch.Tensor:
    """Raise :class:`ModelError` for a loss that fails on the outputs and labels, or does not return a scalar."""
    labels, name = task.some_labels(rows), settings.loss or task.loss
    compute = build_loss(settings, task)
    weighted = weighted or settings.class_weights is not None
    try:
        loss = compute(answered, labels, torch.ones(len(labels)) if weighted else None, inputs=rows)
    except Exception as error:  # whatever a loss of the user's own may raise
        outputs = ", ".join(f"{key} {tuple(value.shape)}" for key, value in named_outputs(answered).items())
        shapes = f"outputs ({outputs}) and labels {tuple(task.targets(labels).shape)}"
        by_row = ' with reduction="none", by which rows and classes get their weights' if weighted else ""
        raise ModelError(f"the loss {name!r} fails on {shapes}{by_row}: {_told(error)}") from None
    if not isinstance(loss, torch.Tensor) or loss.ndim != 0:
        raise ModelError(f"the loss {name!r} must return one number, the mean over the batch")
    return loss


def _told(error: Exception) -> str:
    """The first line of an error, with its class if the message alone may say little."""
    text = next(iter(str(error).splitlines()), "")
    return text if isinstance(error, RuntimeError | TypeError | ValueError) else f"{type(error).__name__}: {text}"


def _check_noise(model: nn.Module, rows: Inputs, settings: Train, dataset: Dataset, *, ranks: int) -> None:
    """Check ``train.gradient_noise``.

    Raises :class:`ConfigError` if steps are too small for noise, and :class:`ModelError` if single rows have no
    gradients.
    """
    noise, step = settings.gradient_noise, settings.batch_size * settings.accumulation * ranks
    small_batch = (noise and noise.small_batch) or settings.batch_size
    if small_batch >= step:
        raise ConfigError(
            f"train.gradient_noise would have no effect: it imitates steps of {small_batch} rows, but a step has {step}"
            " (batch_size x accumulation x ranks); lower train.gradient_noise.small_batch, or leave gradient_noise out"
        )
    task = task_to_train(dataset.card, settings)
    count = count_rows(rows)
    weights = torch.ones(count) if dataset.card.mean_weight is not None else None
    batch = Batch(rows, task.some_labels(rows), count, weights)
    check_rows_apart(model, batch, settings, build_loss(settings, task))


def _check_types(model: nn.Module, settings: Train) -> None:
    """Raise :class:`ModelError` for types that ranks cannot average or checkpoints cannot hold."""
    compressed = isinstance(settings.strategy, CompressedAveraging) and settings.strategy.compression is not None
    averaged = [dtype for dtype in _TRAINED if dtype != torch.float16 or not compressed]
    types = ", ".join(map(str, averaged)) + (" by train.strategy.compression" if compressed else "")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in averaged:
            raise ModelError(
                f"the model {settings.model!r} trains {name!r}, which is {parameter.dtype}, but ranks can only average"
                f" {types}. To compute in bfloat16, set train.precision and keep weights in float32"
            )
    for name, value in full_state(model).items():
        if not isinstance(value, torch.Tensor):
            raise ModelError(f"the model {settings.model!r} keeps {name!r}, which is not a tensor; make it a buffer")


def _check_state(optimizer: torch.optim.Optimizer, settings: Train) -> None:
    """Raise :class:`ConfigError` unless a checkpoint can store and restore the optimizer's options."""
    content = io.BytesIO()
    optimizer.state.clear()  # some optimizers have tensors in it from the beginning
    try:
        torch.save(copied(optimizer.state_dict()), content)
        content.seek(0)
        torch.load(content, weights_only=True)
    except Exception as error:  # whatever pickle raises
        raise ConfigError(
            f"train.optimizer_options of {settings.optimizer!r} have values that a checkpoint cannot store; use only"
            f" numbers, texts, lists and tensors: {error}"
        ) from None
