"""Opens the network of a model's folder in one of its forms. Runs anywhere."""

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import get_args

import torch
from torch import nn

from sparkdl.errors import ConfigError
from sparkdl.inputs.sample import sample_inputs
from sparkdl.inputs.spec import InputSpec
from sparkdl.inputs.tensors import Inputs
from sparkdl.models import (
    NETWORK_FILE,
    Form,
    OnnxNetwork,
    checked_form,
    load_network,
    read_forms,
    seconds_of_each,
)
from sparkdl.settings.compress import FormChoice
from sparkdl.settings.score import BATCH_SIZE

__all__ = ["check_form", "checked_choice", "open_network"]

log = logging.getLogger(__name__)


def checked_choice(form: str) -> FormChoice:
    """The form of this name. Raises :class:`ConfigError` if there is no such form."""
    for known in get_args(FormChoice):
        if form == known:
            choice: FormChoice = known
            return choice
    raise ConfigError(f"score.form is {form!r}; it must be one of {', '.join(get_args(FormChoice))}")


def check_form(folder: Path, form: FormChoice) -> FormChoice:
    """The form, if the model has it. ``auto`` becomes ``original`` if the model does not have the form ``onnx``.

    Raises :class:`ConfigError` for a form that the model does not have.
    """
    known = read_forms(folder)
    if form == "auto":
        return "auto" if "onnx" in known else "original"
    if form != "original":
        checked_form(folder, form)
    return form


def open_network(
    folder: Path,
    form: FormChoice,
    inputs: InputSpec | Mapping[str, InputSpec],
    *,
    device: str = "cpu",
    trusted: Collection[str] = (),
) -> tuple[nn.Module, str]:
    """The network, and the device that it computes on: ``int8`` and ``onnx`` always compute on the CPU.

    With ``auto``, the network is ``onnx`` if the model has that form and ONNX Runtime computes a batch faster than the
    original, which is measured for a second; on a GPU it is the original. Raises :class:`ConfigError` for a form that
    the model does not have, or whose packages are not installed, and :class:`~sparkdl.errors.ModelError` for files
    that are missing or damaged.
    """
    if form != "auto" and form != "original":
        path = checked_form(folder, form)
        return _OPENERS[path.suffix](path, read_forms(folder)[form], device)
    original = load_network(folder / NETWORK_FILE, trusted=trusted)
    if form == "original" or device != "cpu" or "onnx" not in read_forms(folder):
        return original.to(device), device
    return _faster(original, folder, inputs), device


def _open_onnx(path: Path, form: Form, device: str) -> tuple[nn.Module, str]:
    if device != "cpu":
        log.warning("%s computes on the CPU, not on %s", path.name, device)
    return OnnxNetwork(path, rows_at_a_time=form.rows_at_a_time), "cpu"


def _open_network_file(path: Path, form: Form, device: str) -> tuple[nn.Module, str]:
    return load_network(path).to(device), device


_OPENERS: Mapping[str, Callable[[Path, Form, str], tuple[nn.Module, str]]] = {
    ".onnx": _open_onnx,
    ".safetensors": _open_network_file,
}
"""The function that opens a form, by the suffix of its file (:data:`sparkdl.models.FORM_FILES`)."""


def _faster(original: nn.Module, folder: Path, inputs: InputSpec | Mapping[str, InputSpec]) -> nn.Module:
    """The original or its copy in ONNX, whichever computes a batch faster on this machine."""
    try:
        exported, _ = _open_onnx(checked_form(folder, "onnx"), read_forms(folder)["onnx"], "cpu")
    except ConfigError as error:
        log.info("the form onnx cannot be used, so the original network scores: %s", error)
        return original
    seconds = seconds_of_each([original, exported], _batch(inputs))
    log.info("the original network takes %.2g s for a batch, ONNX Runtime %.2g s", *seconds)
    return exported if seconds[1] < seconds[0] else original


def _batch(inputs: InputSpec | Mapping[str, InputSpec]) -> Inputs:
    if isinstance(inputs, InputSpec):
        dtype = getattr(torch, inputs.dtype)
        return torch.zeros(BATCH_SIZE, *inputs.shape, dtype=dtype)
    return sample_inputs(inputs, rows=BATCH_SIZE)
