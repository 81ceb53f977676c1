"""The kinds of ``train.pruning``: which weights or neurons are removed from a network."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sparkdl.settings.kinds import OneKind
from sparkdl.settings.section import Fraction, Positive, Section

__all__ = ["MagnitudeOptions", "Pruning", "StructuredOptions"]


class MagnitudeOptions(Section):
    """More and more of the smallest weights become zero, and stay zero (Zhu and Gupta, 2017, arXiv 1710.01878).

    The fraction of zeros is (1 - (1 - t)³) times ``sparsity``, where t goes from 0 at ``begin_epoch`` to 1 at
    ``end_epoch``. It is the same in each weight tensor of two dimensions or more; biases are not pruned. Only epochs
    after ``end_epoch`` can be the best one. Shapes stay: the network's file compresses well, and it is no faster.
    """

    kind: Literal["magnitude"] = "magnitude"
    sparsity: Fraction = 0.8
    """The fraction of weights that are zero in the end."""
    begin_epoch: Annotated[int, Field(ge=0)] = 0
    """After how many epochs pruning begins."""
    end_epoch: Positive
    """After how many epochs pruning ends; ``epochs`` must be larger, so that the other weights are trained further."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.begin_epoch >= self.end_epoch:
            raise ValueError(f"begin_epoch is {self.begin_epoch} and end_epoch {self.end_epoch}; begin before the end")
        return self


class StructuredOptions(Section):
    """Neurons and channels are removed from the network of ``train.start_from``, and the rest is trained further.

    In each hidden layer, those with the smallest weights are removed: a neuron's score is the norm of its incoming
    weights times the norm of its outgoing weights (compare Li et al., 2017, arXiv 1608.08710). The network is smaller
    and faster from the first step on, and so is the registered one. A layer is pruned only if just the next layer reads
    its neurons: in residual networks, these are the layers inside of blocks.
    """

    kind: Literal["structured"] = "structured"
    keep: Fraction = 0.5
    """The fraction of a layer's neurons that remain; where channels are normalised in groups, of each group's."""


Pruning = OneKind[StructuredOptions | MagnitudeOptions]
