"""How much the gradients of ranks differ, and what this says about the batch size. Runs on ranks.

Two numbers suffice: the mean over ranks of |g|², for the gradient g of a rank's own rows, and |mean g|². The gradient
noise scale is the trace of the covariance of one row's gradient over the squared norm of the true gradient: a batch far
below it learns nearly as much from each row as a small one, a batch far above it wastes rows (McCandlish et al., 2018,
arXiv 1812.06162, appendix A.1). Gradient diversity is the first number over the second: 1 if the gradients of all ranks
are equal, and the number of ranks if they are orthogonal (Yin et al., 2018, arXiv 1706.05699).
"""

from collections.abc import Iterable

import torch

from sparkdl.collectives.communicator import Communicator

__all__ = ["GradientNoise"]


class GradientNoise:
    """Adds up both numbers over the steps of an epoch. Tensors stay where they were computed until they are read."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self._rows = 0.0
        """Rows of a rank in a full step."""
        self._full = False
        self._step: list[torch.Tensor] = []
        """This rank's squared norms of the step in progress, by bucket."""
        self._own: list[torch.Tensor] = []
        self._mean: list[torch.Tensor] = []

    def begin_step(self, global_rows: int) -> None:
        """Begin a step over this many rows of all ranks; a step with fewer rows than others is skipped."""
        rows = global_rows / self._communicator.size
        self._full = rows >= self._rows
        self._rows = max(rows, self._rows)

    def before(self, gradients: Iterable[torch.Tensor]) -> None:
        """Measure gradients of this rank before they are averaged."""
        if self._full:
            self._step.append(_squared_norm(gradients))

    def after(self, gradients: Iterable[torch.Tensor]) -> None:
        """Measure the mean gradients of a step; a step that overflowed, as in float16, does not count."""
        if self._full:
            mean, own = _squared_norm(gradients), torch.stack(self._step).sum()
            self._mean.append(torch.where(mean.isfinite(), mean, 0.0))
            self._own.append(torch.where(mean.isfinite(), own, 0.0))
        self._step = []
        self._full = False  # a rank without rows does not begin the next step

    def figures(self) -> dict[str, float]:
        """``gradient_diversity`` and ``gradient_noise_scale`` (rows) of the steps since the last call.

        All ranks call it together. Both are ratios of sums: the mean of ratios would be biased. The noise scale is
        missing for a single rank, and where steps were too noisy to estimate it.
        """
        size = self._communicator.size
        of_rank, mean = (float(torch.stack(each).sum()) if each else 0.0 for each in (self._own, self._mean))
        self._own, self._mean = [], []
        own = float(self._communicator.all_reduce(torch.tensor(of_rank, dtype=torch.float64)))
        if size == 1 or not mean:
            return {}
        true = (size * mean - own) / (size - 1)
        variance = self._rows * size * (own - mean) / (size - 1)
        found = {"gradient_diversity": own / mean}
        return found | ({"gradient_noise_scale": variance / true} if true > 0 else {})


def _squared_norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    norms = torch._foreach_norm([gradient.detach() for gradient in gradients])  # reads memory once
    return torch.stack([norm.double() for norm in norms]).square().sum()
