"""The contribution of each feature to an output, by integrated gradients. Runs anywhere.

Sundararajan, Taly and Yan, 2017, Axiomatic attribution for deep networks (https://arxiv.org/abs/1703.01365): the mean
gradient along the straight line from a row of zeros to the row, times the row. The contributions and the output for
the row of zeros add up to the row's output.
"""

from collections.abc import Callable

import torch

__all__ = ["contributions"]

STEPS = 32  # points on the line at which the gradient is computed


def contributions(answer: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """The contribution of each feature to the largest output of a row; the last column is the output for zeros.

    ``answer`` maps rows (float32 of shape (n, features)) to outputs of shape (n, k), each row independently. The result
    has shape (n, features + 1). The sum of a row is its largest output, up to the error of a sum over ``STEPS`` points.
    """
    with torch.no_grad():
        chosen = answer(rows).argmax(dim=1, keepdim=True)
        at_zeros = answer(torch.zeros_like(rows)).gather(1, chosen)
    gradient = torch.zeros_like(rows)
    for step in range(STEPS):
        place = (rows * ((step + 0.5) / STEPS)).requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(answer(place).gather(1, chosen).sum(), place)
        gradient += found / STEPS
    return torch.cat([rows * gradient, at_zeros], dim=1)
