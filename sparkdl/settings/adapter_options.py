"""The kinds of ``train.adapters``: small weights that are trained beside a network's own, which are frozen."""

from typing import Annotated, Literal

from pydantic import Field

from sparkdl.settings.kinds import OneKind
from sparkdl.settings.section import Positive, Section

__all__ = ["Adapters", "LoraOptions"]


class LoraOptions(Section):
    """Each weight W of some layers becomes W + B A: B and A have a low rank (Hu et al., 2021, arXiv 2106.09685)."""

    kind: Literal["lora"] = "lora"
    rank: Positive = 8
    """The rank of B A: the columns of B, and the rows of A."""
    targets: list[str] = []
    """The layers: the last parts of their names, such as ``[query, value]``. By default, those that ``peft``
    recommends for the network's architecture, if it knows it."""
    alpha: Annotated[float, Field(gt=0)] = 16.0
    """B A is multiplied by alpha / rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout on the inputs of A."""
    whole: list[str] = []
    """Layers that are trained completely, such as a new head for your classes: ``[classifier]``."""
    registered: Literal["merged", "adapters"] = "merged"
    """What the registered model holds: all weights, with adapters ``merged`` into them, or the ``adapters`` alone, in
    the format of ``peft``, and the SHA-256 of the files of ``model_options.pretrained``, which scoring reads where
    they are: a model of megabytes beside a base of gigabytes."""


Adapters = OneKind[LoraOptions]
