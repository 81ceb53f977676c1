"""Rows to try a network with."""

from collections.abc import Mapping

import torch

from sparkdl.inputs.spec import InputSpec, mask_name

__all__ = ["sample_inputs"]

_SHORTEST = 3
"""Where lengths are to be free, PyTorch would take those of 0 and 1 for constants, and one less is tried, too."""


def sample_inputs(specs: Mapping[str, InputSpec], rows: int = 2) -> dict[str, torch.Tensor]:
    """Rows as a network gets them: numbers are zero, ids the largest that there is, and sequences as long as any.

    The first row fills a sequence, each of the others half of it. Runs anywhere.
    """
    found: dict[str, torch.Tensor] = {}
    for name, spec in specs.items():
        shape = (max(spec.shape[0], _SHORTEST),) if spec.is_ragged else spec.shape
        if spec.dtype == "int32":
            found[name] = torch.full((rows, *shape), (spec.vocabulary or 1) - 1, dtype=torch.int64)
        else:
            found[name] = torch.zeros(rows, *shape, dtype=getattr(torch, spec.dtype))
        if spec.is_ragged:
            mask = torch.ones(rows, *shape, dtype=torch.bool)
            mask[1:, (shape[0] + 1) // 2 :] = False
            found[name] = torch.where(mask, found[name], spec.padding)
            found[mask_name(name)] = mask
    return found
