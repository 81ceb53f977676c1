"""Turns rows of named inputs into tensors: sequences are padded, ids are int64. Runs on ranks and in tasks."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl.data.named_files import Rowwise
from sparkdl.data.ragged import Ragged
from sparkdl.inputs.spec import InputSpec, mask_name

__all__ = ["named_tensors"]


def named_tensors(inputs: Mapping[str, Rowwise], specs: Mapping[str, InputSpec]) -> dict[str, torch.Tensor]:
    """The inputs of some rows by the names of a network's arguments, in the order of ``prepare.inputs``.

    Images are uint8 (n, height, width, channels), vectors float32 (n, width), ids int64 (n, width). ``tokens`` and a
    ``sequence`` are int64 or float32 (n, length of the longest row), followed by a mask of that shape with the name of
    :func:`~sparkdl.inputs.spec.mask_name`: true for elements, false for padding.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name, values in inputs.items():
        spec = specs[name]
        if isinstance(values, Ragged):
            if spec.kind == "sparse":
                tensors[name] = torch.from_numpy(_whole(values, spec.shape[0]))
                continue
            found, mask = values.padded(spec.padding, np.int64 if spec.dtype == "int32" else np.float32)
            tensors[name], tensors[mask_name(name)] = torch.from_numpy(found), torch.from_numpy(mask)
        else:
            tensors[name] = torch.from_numpy(_own(values, spec))
    return tensors


def _own(values: NDArray[Any], spec: InputSpec) -> NDArray[Any]:
    """The values in writable memory: before they are reordered, they are in memory-mapped files."""
    if spec.dtype == "int32":
        return values.astype(np.int64)
    return values if values.flags.writeable else values.copy()


def _whole(features: Ragged, width: int) -> NDArray[np.float32]:
    found = np.zeros((features.rows, width), np.float32)
    rows = np.repeat(np.arange(features.rows), features.lengths)
    found[rows, features.values["index"]] = features.values["value"]
    return found
