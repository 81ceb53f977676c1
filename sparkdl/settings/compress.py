"""The section ``compress``: lighter forms of a registered network."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from sparkdl.settings.section import Section, Storage

__all__ = ["Compress", "FormChoice", "FormGate", "FormName"]

FormName = Literal["int8", "int8_weights", "float16", "onnx"]
"""The lighter copies that a registered network may have beside it."""
FormChoice = Literal["auto", "original", "int8", "int8_weights", "float16", "onnx"]
"""The choices of ``score.form``."""


class FormGate(Section):
    """What a form must reach to be added to a version."""

    model_config = ConfigDict(allow_inf_nan=False)

    lose: Annotated[float, Field(ge=0)] | None = 0.005
    """How much of the task's figure a form may lose on held-out rows: with 0.005, an accuracy of 0.90 may become 0.895.
    For perplexity, the loss is relative. ``null`` keeps every form."""


class Compress(Section):
    """How a registered network gets lighter forms: files beside it, in a new version."""

    model: str | None = None
    """A model URI; by default the one that ``tracking`` registers. The new version has the same name. The
    alias in the URI moves to it, or else ``tracking.alias``."""
    dataset: Storage | None = None
    """The prepared dataset that the network was trained on, or one with the same inputs and labels; by default the one
    that ``train`` reads."""
    forms: Annotated[list[FormName], Field(min_length=1)] = ["int8", "float16", "onnx"]
    """``int8`` stores weights in a quarter of the bytes and computes with integers. ``float16`` stores weights in half
    of the bytes and computes as before. ``onnx`` is the network in the format of ONNX Runtime. ``int8_weights`` stores
    weights in a quarter of the bytes, also in memory, and computes as before, on a GPU as well. An ensemble for very
    many classes can only have ``int8``."""
    calibration_rows: Annotated[int, Field(ge=0)] = 512
    """For ``int8``: the number of validation rows from which the range of each layer's activations is computed
    beforehand. With 0 it is computed anew for every batch, which is slower for convolutions."""
    gate: FormGate = FormGate()
    after_training: bool = False
    """Whether ``sparkdl train`` and ``train-extreme`` also make these forms of the version that they register."""
    run_dir: Storage = "output/runs"
    """Where the task that makes the forms stores them for the driver, which fetches and removes them."""
