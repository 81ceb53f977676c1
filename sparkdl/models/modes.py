"""Training and evaluation mode, on which layers such as dropout and batch normalisation depend."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["in_mode"]


@contextmanager
def in_mode(network: nn.Module, *, training: bool) -> Iterator[nn.Module]:
    """Within this context, a network is in training or evaluation mode; afterwards each module has its own mode again.

    Runs anywhere.
    """
    modes = {module: module.training for module in network.modules()}
    try:
        yield network.train(training)
    finally:
        for module, mode in modes.items():
            module.training = mode
