"""The section ``compress``: lighter forms of a registered network."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from sparkdl.settings.section import Section, Storage

__all__ = ["Compress", "FormChoice", "FormGate", "FormName"]

FormName = Literal["int8", "int8_weights", "float16", "onnx"]
"""The lighter copies that a registered network may have beside it."""
FormChoice = Literal["auto", "original", "int8", "int8_weights", "float16", "onnx"]
"""What scoring may be asked to use."""


class FormGate(Section):
    """What a form must keep before a version has it."""

    model_config = ConfigDict(allow_inf_nan=False)

    lose: Annotated[float, Field(ge=0)] | None = 0.005
    """How much of the task's figure a form may lose on the held-out rows: an accuracy of 0.90 may become 0.895. For
    perplexity, it is the relative loss. ``null`` keeps every form."""


class Compress(Section):
    """How a registered network gets lighter forms: files beside it, in a new version."""

    model: str | None = None
    """A model URI; by default the one that ``tracking`` registers. The new version has the same name, and the alias
    moves that the URI names, or else ``tracking.alias``."""
    dataset: Storage | None = None
    """The prepared dataset that the network was trained on, or one with the same inputs and labels; by default what
    ``train`` reads."""
    forms: Annotated[list[FormName], Field(min_length=1)] = ["int8", "float16", "onnx"]
    """``int8`` has its weights in a quarter of the bytes and computes with whole numbers, ``float16`` has them in half
    of the bytes and computes as before, ``onnx`` is the network as ONNX Runtime takes it. ``int8_weights`` has them in
    a quarter of the bytes, of memory, too, and computes as before, on a GPU as well. Of an ensemble for very many
    classes there is ``int8`` alone."""
    calibration_rows: Annotated[int, Field(ge=0)] = 512
    """``int8``: validation rows by which the range of each layer's numbers is found beforehand. With 0 it is found
    for every batch anew, which is slower for convolutions."""
    gate: FormGate = FormGate()
    after_training: bool = False
    """Whether ``sparkdl train`` and ``train-extreme`` make the forms, too, of the version that they register."""
    run_dir: Storage = "output/runs"
    """Where the task that makes the forms leaves them for the driver, which removes them when it has them."""
