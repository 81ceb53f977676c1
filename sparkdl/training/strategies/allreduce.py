"""Synchronous data parallelism: every step applies the average gradient of all ranks.

Horovod (Sergeev and Del Balso, 2018, arXiv 1802.05799) runs the ring all-reduce of the last layers' gradients while
back-propagation goes on with the layers before.
"""

from torch import nn

from sparkdl.collectives import GradientAverager, is_expanded
from sparkdl.training.strategies.strategy import Strategy

__all__ = ["AllReduce"]


class AllReduce(Strategy):
    """All replicas take the same step, so that their weights never differ."""

    def start(self, model: nn.Module) -> None:
        """Broadcast rank 0's weights and buffers; hook the all-reduce into back-propagation."""
        self.collectives.broadcast_module(model)
        self._averager = GradientAverager(model.parameters(), self.collectives)

    def begin_last_pass(self) -> None:
        """From now on a gradient is sent as soon as its bucket is complete."""
        self._averager.begin_last_pass()

    def reduce_gradients(self) -> None:
        """Wait for the all-reduces that back-propagation started."""
        self._averager.finish()

    def agree(self, model: nn.Module) -> None:
        """Average the buffers (running means of batch normalisation), the only thing that differs between replicas.

        Of others than floating-point ones, which have no mean, rank 0's are taken.
        """
        for buffer in model.buffers():
            if is_expanded(buffer):
                continue  # made so by this step: it has nothing of its own to agree on
            mean = buffer.is_floating_point()
            buffer.copy_(self.collectives.all_reduce(buffer) if mean else self.collectives.broadcast(buffer))
