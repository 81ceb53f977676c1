"""Starts training from the weights of a registered model (``train.start_from``). Runs on the driver."""

import logging
from collections.abc import Mapping

import torch

from sparkdl.data import Dataset
from sparkdl.errors import ModelError
from sparkdl.models import (
    NETWORK_FILE,
    full_state,
    load_full_state,
)
from sparkdl.models import load_weights as load_network_weights
from sparkdl.settings import Tracking, Train
from sparkdl.tracking import download
from sparkdl.training.checkpoints.state import copied
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.network_to_train import build_model, build_whole_model
from sparkdl.training.recipes.structured_pruning import prune_neurons

__all__ = ["starting_weights"]

log = logging.getLogger(__name__)


def starting_weights(uri: str, dataset: Dataset, settings: Train, tracking: Tracking) -> dict[str, torch.Tensor]:
    """Download a registered model; returns the network's state from which training starts.

    Weights of another shape (a new number of classes) keep their initial values, and the log names them. Buffers are
    taken over, also the means by which images are standardised, because the weights were trained with them. With
    structured pruning, it is the state of the remaining neurons. Raises :class:`ModelError` when no trained weight
    fits, and, with pruning, when any does not.
    """
    theirs = load_network_weights(download(uri, tracking) / NETWORK_FILE)
    if settings.narrower:
        return _pruned_weights(uri, theirs, dataset, settings)
    model = build_model(dataset, settings)
    ours = full_state(model)
    fitting = {name: theirs[name] for name, weight in ours.items() if _same_shape(theirs, name, weight)}
    if fitting.keys().isdisjoint(name for name, _ in model.named_parameters()):
        raise ModelError(f"no weight of {uri} fits the network train.model builds; is it the same architecture?")
    if left := sorted(set(ours) - set(fitting)):
        log.warning("starting from %s; these weights do not fit and start afresh: %s", uri, ", ".join(left))
    return ours | fitting


def _pruned_weights(
    uri: str, theirs: Mapping[str, torch.Tensor], dataset: Dataset, settings: Train
) -> dict[str, torch.Tensor]:
    assert settings.narrower
    whole = build_whole_model(dataset, settings)
    ours = full_state(whole)
    if unlike := [name for name, weight in ours.items() if not _same_shape(theirs, name, weight)]:
        found = f"has it with shape {tuple(theirs[unlike[0]].shape)}" if unlike[0] in theirs else "has none"
        raise ModelError(
            f"train.pruning removes neurons of {uri}, which must be the network that train.model and model_options"
            f" build: that has {unlike[0]!r} with shape {tuple(ours[unlike[0]].shape)}, but the model {found}"
        )
    load_full_state(whole, {name: theirs[name] for name in ours})
    prune_neurons(whole, some_rows(dataset), settings.narrower.keep)
    left: dict[str, torch.Tensor] = copied(full_state(whole))
    return left


def _same_shape(theirs: Mapping[str, torch.Tensor], name: str, weight: torch.Tensor) -> bool:
    return name in theirs and theirs[name].shape == weight.shape
