"""What each feature contributes to an answer: integrated gradients. Runs anywhere.

Sundararajan, Taly and Yan, 2017, Axiomatic attribution for deep networks (https://arxiv.org/abs/1703.01365): the mean
gradient on the straight way from a row of zeros to the row, times the row. With the answer to the row of zeros, they
add up to the answer.
"""

from collections.abc import Callable

import torch

__all__ = ["contributions"]

STEPS = 32  # places on the way at which the gradient is taken


def contributions(answer: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    """The contribution of each feature to the largest of a row's answers, and behind them the answer to zeros.

    ``answer`` takes rows (float32 of shape (n, features)) to answers of shape (n, k), each from its own row alone. The
    result has shape (n, features + 1); its sums are the answers, but for what the way's steps leave out.
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
