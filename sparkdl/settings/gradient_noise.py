"""The kinds of ``train.gradient_noise``: the shape of the noise that a large batch lacks."""

from typing import Literal

from sparkdl.settings.kinds import OneKind
from sparkdl.settings.section import Positive, Section

__all__ = ["FisherDiagonalOptions", "FisherTraceOptions", "NoiseOptions", "NoiseShape"]


class NoiseOptions(Section):
    """Noise that is added to the gradient of a large batch."""

    small_batch: Positive | None = None
    """The number of rows, over all ranks, of the step whose noise is imitated; by default ``batch_size``, the rows of
    one rank without accumulation."""


class FisherDiagonalOptions(NoiseOptions):
    """Noise as strong in each parameter as that of a small batch: the diagonal of the Fisher matrix (1902.08234)."""

    kind: Literal["fisher_diagonal"] = "fisher_diagonal"


class FisherTraceOptions(NoiseOptions):
    """The same total strength, equal in all parameters: the trace of the Fisher matrix, divided by their number."""

    kind: Literal["fisher_trace"] = "fisher_trace"


NoiseShape = OneKind[FisherDiagonalOptions | FisherTraceOptions]
