"""Between a checkpoint and the folder that is registered: check first, write last, start from an earlier one.

Runs on the driver. The folder holds the network's graph and weights, the dataset's card (schema, label names) and the
fitted preprocessing, so that scoring takes raw rows.
"""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import fsspec
import pandas as pd
import torch
from torch import nn

from sparkdl.data import Dataset
from sparkdl.data.card import CARD_NAME, PREPROCESSING
from sparkdl.errors import ModelError
from sparkdl.models import NETWORK_FILE, export_network, load_weights
from sparkdl.settings import Tracking, Train
from sparkdl.tracking import download
from sparkdl.training.checkpoint import load_checkpoint, save_weights
from sparkdl.training.loop import build_model
from sparkdl.training.recipe import build_loss, build_optimizer

__all__ = ["check_model", "example_row", "starting_weights", "write_model_folder"]

log = logging.getLogger(__name__)


def check_model(dataset: Dataset, settings: Train) -> nn.Module:
    """Try on two rows, before anything expensive, all that could fail after hours: loss, optimizer, export.

    Raises :class:`ModelError` or :class:`~sparkdl.errors.ConfigError`.
    """
    model = build_model(dataset, settings)
    rows = _sample(dataset)
    labels = torch.arange(2) % dataset.num_classes
    try:
        loss = build_loss(settings)(model.eval()(rows), labels)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise ModelError(f"the loss {settings.loss!r} fails on outputs (2, classes) and labels (2,): {error}") from None
    if not isinstance(loss, torch.Tensor) or loss.ndim != 0:
        raise ModelError(f"the loss {settings.loss!r} must return one number, the mean over the batch")
    build_optimizer(settings, model)
    with TemporaryDirectory() as folder:
        export_network(model, Path(folder) / NETWORK_FILE, rows)
    return model.train()


def starting_weights(uri: str, model: nn.Module, folder: str, tracking: Tracking) -> str:
    """Download a registered model and keep its weights where rank 0 finds them; returns the file.

    Weights of another shape (a new number of classes) are left at their initial values, and the log names them.
    Raises :class:`ModelError` when not a single weight fits.
    """
    theirs, ours = load_weights(download(uri, tracking) / NETWORK_FILE), model.state_dict()
    fitting = {name: theirs[name] for name, weight in ours.items() if _same_shape(theirs, name, weight)}
    if not fitting:
        raise ModelError(f"no weight of {uri} fits the network train.model builds; is it the same architecture?")
    if left := sorted(set(ours) - set(fitting)):
        log.warning("starting from %s; these weights do not fit and start afresh: %s", uri, ", ".join(left))
    path = f"{folder}/start.pt"
    save_weights(path, ours | fitting)
    return path


def write_model_folder(folder: str | Path, dataset: Dataset, settings: Train, checkpoint: str) -> None:
    """Write the network of a checkpoint, with all that scoring needs beside it."""
    folder = Path(folder)
    model = build_model(dataset, settings)
    model.load_state_dict(load_checkpoint(checkpoint)["model"])
    export_network(model, folder / NETWORK_FILE, _sample(dataset))
    (folder / CARD_NAME).write_text(dataset.card_json)
    if dataset.preprocessing_path:
        filesystem, location = fsspec.url_to_fs(dataset.preprocessing_path)
        filesystem.get(location, str(folder / PREPROCESSING), recursive=True)


def example_row(dataset: Dataset) -> pd.DataFrame | None:
    """One raw row of zeros and empty strings, to be kept with the model: it shows the columns, and nobody's data.

    None where a column has a type that zero says nothing about, such as a time.
    """
    blanks: dict[str, object] = {
        "binary": bytes(dataset.input.row_bytes),
        "string": "",
        "boolean": False,
        **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), 0),
        **dict.fromkeys(("float", "double"), 0.0),
        **dict.fromkeys(("array<float>", "array<double>", "vector"), [0.0] * math.prod(dataset.input.shape)),
    }
    if not set(dataset.raw_columns.values()) <= set(blanks):
        return None
    return pd.DataFrame({name: [blanks[sql_type]] for name, sql_type in dataset.raw_columns.items()})


def _sample(dataset: Dataset) -> torch.Tensor:
    """Two rows of zeros."""
    return torch.zeros(2, *dataset.input.shape, dtype=getattr(torch, dataset.input.dtype))


def _same_shape(theirs: Mapping[str, torch.Tensor], name: str, weight: torch.Tensor) -> bool:
    return name in theirs and theirs[name].shape == weight.shape
