"""Writes the folder of a registered model from a checkpoint, with all that scoring needs.

Runs on the driver. The folder holds the network's graph and weights, the dataset's card (schema, label names) and the
fitted preprocessing, so that scoring takes raw rows.
"""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import torch
from torch import nn

from sparkdl.data import Dataset
from sparkdl.data.model_inputs import keep_inputs
from sparkdl.errors import ModelError
from sparkdl.inputs.tensors import Inputs, answer
from sparkdl.layouts import fill
from sparkdl.models import (
    NETWORK_FILE,
    BesideBase,
    Reference,
    TracedNetwork,
    export_in_parts,
    full_state,
    load_full_state,
    name_of,
    tensors_on_disk,
    trace_network,
    write_in_parts,
    write_network,
    write_reference,
)
from sparkdl.settings import Train
from sparkdl.training.checkpoints.parted_checkpoint import best_pieces, best_weights
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.network_to_train import build_hollow_model, build_model
from sparkdl.training.output_columns import output_columns, shapes_of_outputs
from sparkdl.training.recipes.adapters import adapters_beside, merge_adapters, write_adapter_config
from sparkdl.training.strategies.plain_stacks import narrowed, ownership_of
from sparkdl.training.task_to_train import task_to_train
from sparkdl.training.traced_network import free_lengths, traced_or_named

__all__ = ["write_model_folder"]


def write_model_folder(
    folder: str | Path,
    dataset: Dataset,
    settings: Train,
    checkpoint: str,
    *,
    traced: TracedNetwork | Reference | None = None,
    in_parts: bool = False,
) -> pa.Schema:
    """Write the network of a checkpoint and all else that scoring needs; ``traced`` is from :func:`tried_model`.

    ``in_parts``: the network was split over ranks, so that memory may not suffice for all of it.
    Returns the columns that scoring will add.
    """
    folder, task = Path(folder), task_to_train(dataset.card, settings)
    shapes: dict[str, tuple[int, ...]] = {}
    if settings.in_parts == "strategy.sharded":
        _write_wide(folder / NETWORK_FILE, dataset, settings, checkpoint)
    elif settings.in_parts or in_parts:
        _write_pieces(folder / NETWORK_FILE, dataset, settings, checkpoint, traced)
    else:
        model = build_model(dataset, settings)
        load_full_state(model, best_weights(checkpoint))
        beside = adapters_beside(model, settings)
        if settings.adapters:
            model = merge_adapters(model)
        rows = some_rows(dataset)
        traced = traced or traced_or_named(model, rows, dataset, settings, beside)
        if isinstance(traced, Reference):
            write_reference(model, folder / NETWORK_FILE, traced)
        else:
            _write_network(model, folder / NETWORK_FILE, rows, traced, beside)
        if beside:
            write_adapter_config(folder, settings)
        with torch.no_grad():
            answered = answer(model.eval(), rows)
        shapes = shapes_of_outputs(answered, settings.outputs, model=name_of(settings.model))
    changed = task.kept_with_models() | ({"outputs": shapes} if shapes else {})
    keep_inputs(dataset, folder, changed=changed)
    return pa.schema([*task.answer, *output_columns(shapes)])


def _write_network(
    model: nn.Module, path: Path, rows: Inputs, traced: TracedNetwork, beside: BesideBase | None
) -> None:
    try:
        write_network(model, path, rows, traced, beside)
    except ModelError:  # its constants are random, and differ in every network
        again = trace_network(model, rows, outputs=traced.outputs, lengths=traced.lengths)
        write_network(model, path, rows, again, beside)


def _write_wide(path: Path, dataset: Dataset, settings: Train, checkpoint: str) -> None:
    """Write the file of a network without weights, by the trace of a narrow one; one part is in memory at a time."""
    network = build_hollow_model(dataset, settings)
    ownership = ownership_of(network, seed=settings.seed)
    rows = torch.zeros(2, *dataset.input.shape)
    tensors = export_in_parts(narrowed(network, ownership), path, rows, ownership.shapes)
    _fill_file(tensors, ownership.shapes, checkpoint)


def _write_pieces(
    path: Path, dataset: Dataset, settings: Train, checkpoint: str, traced: TracedNetwork | Reference | None
) -> None:
    """Write the file of a network that is on disk; one part is in memory at a time."""
    with tensors_on_disk():
        model = build_model(dataset, settings)
    if not isinstance(traced, TracedNetwork):
        traced = trace_network(model, some_rows(dataset), lengths=free_lengths(dataset))
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
    _fill_file(write_in_parts(path, traced, full_state(model)), shapes, checkpoint)


def _fill_file(tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]], checkpoint: str) -> None:
    """Fill the tensors of a file with the best weights; ``shapes`` has those of tensors that are split."""
    for name, value in fill({name: tensors[name] for name in shapes}, {}, shapes, best_pieces(checkpoint)).items():
        tensors[name].copy_(value)
