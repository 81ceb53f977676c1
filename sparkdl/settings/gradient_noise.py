"""The kinds of ``train.gradient_noise``: what the noise looks like that a large batch lacks."""

from typing import Literal

from sparkdl.settings.kinds import OneKind
from sparkdl.settings.section import Positive, Section

__all__ = ["FisherDiagonalOptions", "FisherTraceOptions", "NoiseOptions", "NoiseShape"]


class NoiseOptions(Section):
    """Noise that is added to the gradient of a large batch."""

    small_batch: Positive | None = None
    """How many rows a step has, of all ranks together, whose noise it shall be; by default ``batch_size``, the rows of
    one rank without accumulation."""


class FisherDiagonalOptions(NoiseOptions):
    """Noise as strong in each parameter as that of a small batch: the Fisher matrix' diagonal (arXiv 1902.08234)."""

    kind: Literal["fisher_diagonal"] = "fisher_diagonal"


class FisherTraceOptions(NoiseOptions):
    """The same strength altogether, but equal in all parameters: the Fisher matrix' trace, over their number."""

    kind: Literal["fisher_trace"] = "fisher_trace"


NoiseShape = OneKind[FisherDiagonalOptions | FisherTraceOptions]
