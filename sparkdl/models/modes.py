"""The modes of a network's modules, which layers such as dropout and batch normalisation look at."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["in_mode"]


@contextmanager
def in_mode(network: nn.Module, *, training: bool) -> Iterator[nn.Module]:
    """Put a network into training or evaluation mode, and afterwards each of its modules back into its own.

    Runs anywhere.
    """
    modes = {module: module.training for module in network.modules()}
    try:
        yield network.train(training)
    finally:
        for module, mode in modes.items():
            module.training = mode
