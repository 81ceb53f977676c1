"""A few rows of zeros, to try a network with. Runs anywhere."""

import torch

from sparkdl.data import Dataset
from sparkdl.inputs.sample import sample_inputs
from sparkdl.inputs.tensors import Inputs

__all__ = ["some_rows"]


def some_rows(dataset: Dataset) -> Inputs:
    """Two rows of zeros in the shape of the network's input; for named inputs, the rows of :func:`sample_inputs`."""
    if inputs := dataset.card.inputs:
        return sample_inputs(inputs)
    return torch.zeros(2, *dataset.input.shape, dtype=getattr(torch, dataset.input.dtype))
