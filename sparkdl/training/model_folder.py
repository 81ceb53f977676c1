"""Between a checkpoint and the folder that is registered: check first, write last, start from an earlier one.

Runs on the driver. The folder holds the network's graph and weights, the dataset's card (schema, label names) and the
fitted preprocessing, so that scoring takes raw rows.
"""

import io
import logging
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import torch
from torch import nn

from sparkdl.data import Batch, Dataset
from sparkdl.data.model_inputs import keep_inputs
from sparkdl.errors import ConfigError, ModelError
from sparkdl.inputs.spec import mask_name
from sparkdl.inputs.tensors import Inputs, answer, count_rows
from sparkdl.layouts import check_may_be_sharded, fill
from sparkdl.models import (
    LOGITS,
    NETWORK_FILE,
    BesideBase,
    Reference,
    TracedNetwork,
    copied_network,
    export_in_parts,
    full_state,
    load_full_state,
    name_of,
    named_outputs,
    refer,
    tensors_on_disk,
    trace_network,
    try_network,
    write_in_parts,
    write_network,
    write_reference,
)
from sparkdl.models import load_weights as load_network_weights
from sparkdl.settings import Tracking, Train
from sparkdl.settings.averaging import CompressedAveraging
from sparkdl.settings.strategies import ISTOptions, ResISTOptions
from sparkdl.tracking import download
from sparkdl.training.checkpoints.parted_checkpoint import best_pieces, best_weights
from sparkdl.training.checkpoints.state import copied
from sparkdl.training.checks.some_rows import some_rows
from sparkdl.training.checks.trial import check_trained, try_training
from sparkdl.training.output_columns import output_columns, shapes_of_outputs
from sparkdl.training.recipes.adapters import adapters_beside, merge_adapters, write_adapter_config
from sparkdl.training.recipes.fisher_noise import check_rows_apart
from sparkdl.training.recipes.losses import build_loss
from sparkdl.training.recipes.recipe import build_optimizer
from sparkdl.training.recipes.structured_pruning import prune_neurons
from sparkdl.training.replica import build_arguments, build_hollow_model, build_model, build_whole_model
from sparkdl.training.strategies.plain_stacks import check_draws, narrowed, ownership_of, recorded_draws
from sparkdl.training.strategies.residual_blocks import check_blocks
from sparkdl.training.strategies.symmetry import check_counts, check_sub_networks
from sparkdl.training.task_to_train import task_to_train
from sparkdl.training.tasks import Task

__all__ = ["check_model", "starting_weights", "tried_model", "write_model_folder"]

_TRAINED = torch.float16, torch.float32, torch.float64

log = logging.getLogger(__name__)


def check_model(dataset: Dataset, settings: Train, *, ranks: int = 1) -> nn.Module:
    """What :func:`tried_model` does, for who needs the network alone."""
    return tried_model(dataset, settings, ranks=ranks)[0]


def tried_model(
    dataset: Dataset, settings: Train, *, ranks: int = 1, export: bool = True, on_disk: bool = False
) -> tuple[nn.Module, TracedNetwork | Reference | None]:
    """Try on two rows, before anything expensive, all that could fail after hours: loss, optimizer, strategy, export.

    Returns the network, and its trace unless it lies in parts; where it cannot be exported, what builds it; without
    ``export``, which takes the longest, nothing. ``on_disk``: its weights are to take no memory. Raises
    :class:`ModelError` or :class:`ConfigError`.
    """
    if settings.in_parts == "strategy.sharded":
        network = _hollow_model(dataset, settings, ranks=ranks)
        # Few neurons in the hidden layers are enough to try.
        narrow = narrowed(network, ownership_of(network, seed=settings.seed))
        _try(narrow, dataset, settings, ranks=ranks)
        if export:
            _traced(narrow, dataset, settings)
        return network.train(), None
    with tensors_on_disk() if settings.in_parts or on_disk else nullcontext():  # with all that a step makes of it
        model = build_model(dataset, settings)
        _try(model, dataset, settings, ranks=ranks)
    return model.train(), _traced(model, dataset, settings) if export else None


def _try(model: nn.Module, dataset: Dataset, settings: Train, *, ranks: int) -> None:
    """Answer, take a step, and see whether the strategy can do with the network what it does."""
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


def _traced(model: nn.Module, dataset: Dataset, settings: Train) -> TracedNetwork | Reference:
    """The trace of a network that has been tried, or what builds it."""
    registered, beside = model, None
    if settings.adapters:
        registered = copied_network(model, name_of(settings.model))
        beside = adapters_beside(registered, settings)
        registered = merge_adapters(registered)
    return _traced_or_named(registered, some_rows(dataset), dataset, settings, beside)


def _traced_or_named(
    model: nn.Module, rows: Inputs, dataset: Dataset, settings: Train, beside: BesideBase | None
) -> TracedNetwork | Reference:
    """The trace of a network, or what builds one that cannot be exported. Raises :class:`ModelError` for neither.

    Only one that is exported can lie ``beside`` its base.
    """
    try:
        traced = trace_network(model, rows, outputs=_kept_outputs(settings), lengths=_free_lengths(dataset))
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
                f"{error}. Nor can the model be kept by the name of the code that builds it: {unnamed}"
            ) from error
        log.warning(
            "%s. So the registered model will hold weights and the name %s: whoever scores with it has to have that"
            " package and to name it in score.trusted_modules",
            error,
            reference.model,
        )
        return reference


def starting_weights(uri: str, dataset: Dataset, settings: Train, tracking: Tracking) -> dict[str, torch.Tensor]:
    """What training starts from when that is a registered model: the state of the network, which downloads it.

    Weights of another shape (a new number of classes) are left at their initial values, and the log names them.
    Buffers come along, the means too by which images were standardised: the weights were learned behind them. Where
    neurons leave the model, it is that of those which stay.
    Raises :class:`ModelError` when not a single weight that is trained fits; when neurons leave, if one does not.
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
            f"train.pruning takes neurons out of {uri}, which has to be the network that train.model and model_options"
            f" build: that has {unlike[0]!r} with shape {tuple(ours[unlike[0]].shape)}, and the model {found}"
        )
    load_full_state(whole, {name: theirs[name] for name in ours})
    prune_neurons(whole, some_rows(dataset), settings.narrower.keep)
    left: dict[str, torch.Tensor] = copied(full_state(whole))
    return left


def write_model_folder(
    folder: str | Path,
    dataset: Dataset,
    settings: Train,
    checkpoint: str,
    *,
    traced: TracedNetwork | Reference | None = None,
    in_parts: bool = False,
) -> pa.Schema:
    """Write the network of a checkpoint, with all that scoring needs beside it; ``traced`` is of :func:`tried_model`.

    ``in_parts``: ranks had it in parts, so that there may be no room for the whole.
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
        traced = traced or _traced_or_named(model, rows, dataset, settings, beside)
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


def _kept_outputs(settings: Train) -> list[str]:
    """The outputs that a model's file gives: first what predictions are made of."""
    return list(dict.fromkeys([LOGITS, *settings.outputs]))


def _free_lengths(dataset: Dataset) -> list[str]:
    """The inputs, and their masks, that are as long in a batch as the longest row."""
    ragged = [name for name, spec in dataset.card.inputs.items() if spec.is_ragged]
    return [argument for name in ragged for argument in (name, mask_name(name))]


def _write_network(
    model: nn.Module, path: Path, rows: Inputs, traced: TracedNetwork, beside: BesideBase | None
) -> None:
    try:
        write_network(model, path, rows, traced, beside)
    except ModelError:  # it has constants that each network draws for itself
        again = trace_network(model, rows, outputs=traced.outputs, lengths=traced.lengths)
        write_network(model, path, rows, again, beside)


def _write_wide(path: Path, dataset: Dataset, settings: Train, checkpoint: str) -> None:
    """The file of a network without weights, which is traced with few neurons; a part is in memory at a time."""
    network = build_hollow_model(dataset, settings)
    ownership = ownership_of(network, seed=settings.seed)
    rows = torch.zeros(2, *dataset.input.shape)
    tensors = export_in_parts(narrowed(network, ownership), path, rows, ownership.shapes)
    _fill_file(tensors, ownership.shapes, checkpoint)


def _write_pieces(
    path: Path, dataset: Dataset, settings: Train, checkpoint: str, traced: TracedNetwork | Reference | None
) -> None:
    """The file of a network that is on disk, of which one part is in memory at a time."""
    with tensors_on_disk():
        model = build_model(dataset, settings)
    if not isinstance(traced, TracedNetwork):
        traced = trace_network(model, some_rows(dataset), lengths=_free_lengths(dataset))
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters(remove_duplicate=False)}
    _fill_file(write_in_parts(path, traced, full_state(model)), shapes, checkpoint)


def _fill_file(tensors: Mapping[str, torch.Tensor], shapes: Mapping[str, tuple[int, ...]], checkpoint: str) -> None:
    """Fill the tensors of a file by the best weights; ``shapes`` are of those that lie in parts."""
    for name, value in fill({name: tensors[name] for name in shapes}, {}, shapes, best_pieces(checkpoint)).items():
        tensors[name].copy_(value)


def _hollow_model(dataset: Dataset, settings: Train, *, ranks: int) -> nn.Module:
    """The network without weights; raises :class:`ModelError` for one that cannot lie in parts."""
    with recorded_draws() as drawn:
        network = build_hollow_model(dataset, settings)
    ownership = ownership_of(network, seed=settings.seed)
    check_counts(ownership.counts, ranks=ranks)
    check_draws(network, drawn)
    outputs = task_to_train(dataset.card, settings).outputs
    try_network(narrowed(network, ownership), settings.model, some_rows(dataset), outputs)
    return network


def _try_loss(answered: Any, rows: Inputs, settings: Train, task: Task, *, weighted: bool) -> torch.Tensor:
    """Raise :class:`ModelError` for a loss that does not take what it will be given, or returns no number."""
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
    """The first line of an error, with its class where it says little by itself."""
    text = next(iter(str(error).splitlines()), "")
    return text if isinstance(error, RuntimeError | TypeError | ValueError) else f"{type(error).__name__}: {text}"


def _check_noise(model: nn.Module, rows: Inputs, settings: Train, dataset: Dataset, *, ranks: int) -> None:
    """Raise :class:`ConfigError` for noise that no step lacks, :class:`ModelError` where rows have no gradients."""
    noise, step = settings.gradient_noise, settings.batch_size * settings.accumulation * ranks
    small_batch = (noise and noise.small_batch) or settings.batch_size
    if small_batch >= step:
        raise ConfigError(
            f"train.gradient_noise would do nothing: it is that of {small_batch} rows, and a step has {step}"
            " (batch_size x accumulation x ranks); lower train.gradient_noise.small_batch, or leave gradient_noise out"
        )
    task = task_to_train(dataset.card, settings)
    count = count_rows(rows)
    weights = torch.ones(count) if dataset.card.mean_weight is not None else None
    batch = Batch(rows, task.some_labels(rows), count, weights)
    check_rows_apart(model, batch, settings, build_loss(settings, task))


def _check_types(model: nn.Module, settings: Train) -> None:
    """Raise :class:`ModelError` for what ranks cannot exchange or checkpoints cannot hold."""
    compressed = isinstance(settings.strategy, CompressedAveraging) and settings.strategy.compression is not None
    averaged = [dtype for dtype in _TRAINED if dtype != torch.float16 or not compressed]
    types = ", ".join(map(str, averaged)) + (" by train.strategy.compression" if compressed else "")
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in averaged:
            raise ModelError(
                f"the model {settings.model!r} trains {name!r}, which is of {parameter.dtype}; ranks average {types}."
                " To compute in bfloat16, set train.precision and leave weights in float32"
            )
    for name, value in full_state(model).items():
        if not isinstance(value, torch.Tensor):
            raise ModelError(f"the model {settings.model!r} keeps {name!r}, which is no tensor; make it a buffer")


def _check_state(optimizer: torch.optim.Optimizer, settings: Train) -> None:
    """Raise :class:`ConfigError` unless a checkpoint gives the optimizer's options back."""
    content = io.BytesIO()
    optimizer.state.clear()  # of tensors, which some have from the beginning
    try:
        torch.save(copied(optimizer.state_dict()), content)
        content.seek(0)
        torch.load(content, weights_only=True)
    except Exception as error:  # whatever pickle raises
        raise ConfigError(
            f"train.optimizer_options of {settings.optimizer!r} hold what a checkpoint cannot; hand in plain numbers,"
            f" texts, lists and tensors: {error}"
        ) from None


def _same_shape(theirs: Mapping[str, torch.Tensor], name: str, weight: torch.Tensor) -> bool:
    return name in theirs and theirs[name].shape == weight.shape
