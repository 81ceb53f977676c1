"""The network that settings and a dataset's card describe: whole, on disk, or without weights.

Runs on driver and ranks.
"""

from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from sparkdl.collectives import is_expanded
from sparkdl.data import Dataset
from sparkdl.errors import ModelError
from sparkdl.models import build_by, build_without_weights, tensors_on_disk
from sparkdl.settings import Train
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.recipes.adapters import with_adapters
from sparkdl.training.recipes.structured_pruning import prune_neurons
from sparkdl.training.task_to_train import task_to_train

__all__ = ["build_arguments", "build_for_ranks", "build_hollow_model", "build_model", "build_whole_model"]


def build_for_ranks(dataset: Dataset, settings: Train, *, on_disk: bool = False) -> nn.Module:
    """The network with which each rank starts: in memory, unless it will be split over ranks.

    In that case it is without weights, if the strategy initialises them in parts, or else has its weights on disk.
    """
    if settings.in_parts == "strategy.sharded":
        return build_hollow_model(dataset, settings)
    with tensors_on_disk() if settings.in_parts or on_disk else nullcontext():
        return build_model(dataset, settings)


def build_whole_model(dataset: Dataset, settings: Train) -> nn.Module:
    """The network that ``train.model`` builds, with the weights of the seed."""
    torch.manual_seed(settings.seed)
    return build_by(settings.model, build_arguments(dataset, settings))


def build_model(dataset: Dataset, settings: Train) -> nn.Module:
    """The network for this dataset; the same seed gives the same weights on every rank.

    Buffers are not expanded, because values of a checkpoint or of another rank could not be written into them.
    """
    model = build_whole_model(dataset, settings)
    if settings.narrower:
        prune_neurons(model, some_rows(dataset), settings.narrower.keep)
    if settings.adapters:
        model = with_adapters(model, settings.adapters)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False):
            if is_expanded(buffer):
                setattr(module, name, buffer.contiguous())
    return model


def build_hollow_model(dataset: Dataset, settings: Train) -> nn.Module:
    """The network without weights, for strategies that split it over ranks. Raises :class:`ModelError`."""
    if inputs := dataset.card.inputs:
        raise ModelError(
            f"train.strategy keeps parts of the network on ranks, which needs a plain stack of layers, but the inputs"
            f" {', '.join(inputs)} have names: leave out `sharded`, or prepare with `features` instead of `inputs`"
        )
    return build_without_weights(settings.model, **build_arguments(dataset, settings))


def build_arguments(dataset: Dataset, settings: Train) -> dict[str, Any]:
    """The arguments of :func:`sparkdl.models.build` for this dataset, or of ``build_named`` if inputs have names."""
    task = task_to_train(dataset.card, settings)
    if inputs := dataset.card.inputs:
        by_token = {"by_token": True} if task.name == "language_modelling" else {}
        return by_token | {
            "inputs": {name: spec.model_dump(mode="json") for name, spec in inputs.items()},
            "num_classes": task.outputs,
            "options": settings.model_options,
        }
    return {
        "input_shape": dataset.input.shape,
        "num_classes": task.outputs,
        "mean": dataset.input.mean,
        "std": dataset.input.std,
        "options": settings.model_options,
    }
