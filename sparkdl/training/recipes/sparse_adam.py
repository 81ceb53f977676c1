"""Adam for networks of which some gradients are sparse and others are not."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from typing_extensions import override

__all__ = ["SparseAdam"]


class SparseAdam(torch.optim.AdamW):
    """PyTorch's ``SparseAdam`` where a gradient is sparse, and ``AdamW`` where it is dense. Runs on ranks.

    The first changes moments and weights of the rows that a gradient has, and no others: neither do moments decay nor
    weights where a batch has not met them.
    """

    @override
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Step with the gradients that there are; nothing is computed anew for it."""
        with self._of(sparse=False):
            super().step()
        with self._of(sparse=True) as tables:
            for state in (self.state[table] for table in tables if table in self.state):
                state["step"] = int(state["step"])  # of which AdamW makes a float32 when it loads a state
            torch.optim.SparseAdam.step(self)  # type: ignore[arg-type]

    @contextmanager
    def _of(self, *, sparse: bool) -> Iterator[list[torch.nn.Parameter]]:
        """The parameters with gradients of a layout; those of the other one have none for as long as it lasts."""
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        others = {each: each.grad for each in parameters if each.grad is not None and each.grad.is_sparse != sparse}
        for parameter in others:
            parameter.grad = None
        try:
            yield [each for each in parameters if each.grad is not None]
        finally:
            for parameter, gradient in others.items():
                parameter.grad = gradient
