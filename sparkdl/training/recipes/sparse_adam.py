"""Adam for networks that have both sparse and dense gradients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from typing_extensions import override

__all__ = ["SparseAdam"]


class SparseAdam(torch.optim.AdamW):
    """PyTorch's ``SparseAdam`` for sparse gradients, and ``AdamW`` for dense ones. Runs on ranks.

    ``SparseAdam`` changes moments and weights only in the rows that a gradient has. In all other rows of a table,
    neither moments nor weights decay.
    """

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Step on the current gradients; ``closure`` is not called."""
        with self._of(sparse=False):
            super().step()
        with self._of(sparse=True) as tables:
            for state in (self.state[table] for table in tables if table in self.state):
                state["step"] = int(state["step"])  # AdamW makes it a float32 tensor when it loads a state
            torch.optim.SparseAdam.step(self)  # type: ignore[arg-type]

    @contextmanager
    def _of(self, *, sparse: bool) -> Iterator[list[torch.nn.Parameter]]:
        """The parameters with sparse, or dense, gradients; within the context, other parameters have no gradient."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        others = {each: each.grad for each in parameters if each.grad is not None and each.grad.is_sparse != sparse}
        for parameter in others:
            parameter.grad = None
        try:
            yield [each for each in parameters if each.grad is not None]
        finally:
            for parameter, gradient in others.items():
                parameter.grad = gradient
