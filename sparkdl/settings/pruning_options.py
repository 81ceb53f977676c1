"""The kinds of ``train.pruning``: what leaves a network while it is trained."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkdl.settings.kinds import OneKind
from sparkdl.settings.section import Fraction, Positive, Section

__all__ = ["MagnitudeOptions", "Pruning", "StructuredOptions"]


class MagnitudeOptions(Section):
    """The smallest weights become zero, more and more of them, and stay so (Zhu and Gupta, 2017, arXiv 1710.01878).

    The part of them that is zero grows as 1 - (1 - t)³ times ``sparsity``, where t goes from 0 to 1 between two epochs.
    It is the same in each weight of a layer that has two dimensions or more; biases stay. An epoch before the last
    weights left is never the best one. The network keeps its shapes: it can be compressed, and is no faster.
    """

    kind: Literal["magnitude"] = "magnitude"
    sparsity: Fraction = 0.8
    """The part of weights that is zero in the end."""
    begin_epoch: Annotated[int, Field(ge=0)] = 0
    """After how many epochs the first weights leave."""
    end_epoch: Positive
    """After how many epochs all have left; there have to be more, in which the others are trained on."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.begin_epoch >= self.end_epoch:
            raise ValueError(f"begin_epoch is {self.begin_epoch} and end_epoch {self.end_epoch}; begin before the end")
        return self


class StructuredOptions(Section):
    """Neurons and channels leave the network of ``train.start_from``, and what is left of it is trained on.

    Of each hidden layer those leave whose weights are the smallest: by the norm of the weights with which a neuron
    reads, times that of the weights with which it is read (compare Li et al., 2017, arXiv 1608.08710). The network is
    smaller and faster from the first step on, and so is the registered one. Only layers become narrower whose neurons
    the next layer alone reads: of a residual network those inside of blocks.
    """

    kind: Literal["structured"] = "structured"
    keep: Fraction = 0.5
    """The part of each such layer's neurons that stays; where channels are normalised in groups, of each group's."""


Pruning = OneKind[StructuredOptions | MagnitudeOptions]
