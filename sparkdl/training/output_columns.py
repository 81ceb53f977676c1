"""Outputs of a network that scoring returns as columns beside predictions, by their names. Runs anywhere."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import torch

from sparkdl.errors import ModelError
from sparkdl.models import check_answer, named_outputs
from sparkdl.training.tasks.likeliest import lists

__all__ = ["column_of", "output_columns", "shapes_of_outputs"]


def shapes_of_outputs(answered: Any, names: Sequence[str], *, model: str) -> dict[str, tuple[int, ...]]:
    """The shapes of these outputs for one row: (width,) for a vector, () for a number.

    ``answered`` has the network's outputs for two rows. Raises :class:`ModelError` for an output that is missing, or
    has another shape or type.
    """
    check_answer(answered, names, model)
    found = named_outputs(answered)
    for name in names:
        output = found[name]
        if output.ndim not in (1, 2) or len(output) != 2 or output.is_complex():
            raise ModelError(
                f"the output {name!r} of the model {model!r} is {output.dtype} of shape {tuple(output.shape)} for two"
                " rows; a column (train.outputs) has a number or a vector of numbers for each row"
            )
    return {name: tuple(found[name].shape[1:]) for name in names}


def output_columns(outputs: Mapping[str, Sequence[int]]) -> list[pa.Field]:
    """The columns of outputs with these shapes: floats or arrays of floats."""
    return [pa.field(name, pa.list_(pa.float32()) if shape else pa.float32()) for name, shape in outputs.items()]


def column_of(output: torch.Tensor) -> pa.Array:
    """The column of an output that is float32, of shape (n,) or (n, width)."""
    return lists(output.numpy()) if output.ndim == 2 else pa.array(output.numpy())
