"""The source of a network's registered file: the trace of its operations, or a reference to its code.

Runs on the driver.
"""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import nn

from sparkdl.data import Dataset
from sparkdl.errors import ModelError
from sparkdl.inputs.spec import mask_name
from sparkdl.inputs.tensors import Inputs
from sparkdl.models import (
    LOGITS,
    NETWORK_FILE,
    BesideBase,
    Reference,
    TracedNetwork,
    copied_network,
    name_of,
    refer,
    trace_network,
    write_network,
)
from sparkdl.settings import Train
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.network_to_train import build_arguments
from sparkdl.training.recipes.adapters import adapters_beside, merge_adapters

__all__ = ["free_lengths", "trace", "traced_or_named"]

log = logging.getLogger(__name__)


def trace(model: nn.Module, dataset: Dataset, settings: Train) -> TracedNetwork | Reference:
    """The trace of a network that has been tried, or a reference to its code."""
    registered, beside = model, None
    if settings.adapters:
        registered = copied_network(model, name_of(settings.model))
        beside = adapters_beside(registered, settings)
        registered = merge_adapters(registered)
    return traced_or_named(registered, some_rows(dataset), dataset, settings, beside)


def traced_or_named(
    model: nn.Module, rows: Inputs, dataset: Dataset, settings: Train, beside: BesideBase | None
) -> TracedNetwork | Reference:
    """The trace of a network, or a reference to its code if it cannot be exported. Raises :class:`ModelError`.

    Only an exported network can be registered as adapters ``beside`` its base.
    """
    try:
        traced = trace_network(model, rows, outputs=_kept_outputs(settings), lengths=free_lengths(dataset))
        with TemporaryDirectory() as folder:
            write_network(model, Path(folder) / NETWORK_FILE, rows, traced, beside)
        return traced
    except ModelError as error:
        if settings.in_parts or beside or settings.narrower:  # whose code builds another network
            raise
        try:
            reference = refer(settings.model, build_arguments(dataset, settings))
        except ModelError as unnamed:
            raise ModelError(
                f"{error}. Nor can the model be stored with the name of the code that builds it: {unnamed}"
            ) from error
        log.warning(
            "%s. So the registered model will contain weights and the name %s: to score with it, that package must be"
            " installed and listed in score.trusted_modules",
            error,
            reference.model,
        )
        return reference


def _kept_outputs(settings: Train) -> list[str]:
    """The outputs in a model's file; those for predictions come first."""
    return list(dict.fromkeys([LOGITS, *settings.outputs]))


def free_lengths(dataset: Dataset) -> list[str]:
    """The inputs (and their masks) whose length in a batch is that of the longest row."""
    ragged = [name for name, spec in dataset.card.inputs.items() if spec.is_ragged]
    return [argument for name in ragged for argument in (name, mask_name(name))]
