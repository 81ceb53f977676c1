"""Synchronous data parallelism: every step applies the average gradient of all ranks.

Horovod (Sergeev and Del Balso, 2018, arXiv 1802.05799) starts the ring all-reduce of a layer's gradient as soon as
back-propagation has produced it, and goes on with the next layer meanwhile.
"""

import torch
from torch import nn

from sparkdl.training.strategies.strategy import Strategy

__all__ = ["AllReduce"]


class AllReduce(Strategy):
    """All replicas take the same step, so that their weights never differ."""

    def start(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, accumulation: int) -> torch.optim.Optimizer:
        """Broadcast rank 0's weights, buffers and optimizer state; hook the all-reduce into back-propagation."""
        self.collectives.broadcast_parameters(model)
        return self.collectives.distribute(optimizer, model, accumulation=accumulation)

    def reduce_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Wait for the all-reduces that back-propagation started."""
        optimizer.synchronize()  # type: ignore[attr-defined]

    def apply(self, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler) -> None:
        """Apply the averaged gradient."""
        with optimizer.skip_synchronize():  # type: ignore[attr-defined]
            scaler.step(optimizer)

    def agree(self, model: nn.Module) -> None:
        """Average the buffers (running means of batch normalisation): the only thing that differs between replicas."""
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.copy_(self.collectives.allreduce(buffer, op="mean"))
