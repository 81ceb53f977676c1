"""Rows of inputs that have names become tensors: sequences are padded, ids are int64. Runs on ranks and in tasks."""

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

    uint8 (n, height, width, channels) of images, float32 (n, width) of vectors, int64 (n, width) of ids. ``tokens`` and
    a ``sequence`` are int64 or float32 (n, length of the longest row); a bool tensor of that shape follows them, by the
    name that :func:`~sparkdl.inputs.spec.mask_name` says, which is true where a row has something.
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
    """Memory that may be written to: what is read lies in mapped files until it is put in order."""
    if spec.dtype == "int32":
        return values.astype(np.int64)
    return values if values.flags.writeable else values.copy()


def _whole(features: Ragged, width: int) -> NDArray[np.float32]:
    found = np.zeros((features.rows, width), np.float32)
    rows = np.repeat(np.arange(features.rows), features.lengths)
    found[rows, features.values["index"]] = features.values["value"]
    return found
