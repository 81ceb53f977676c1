"""A network that takes several times as long on one of all processes, as it would on a slower core.

The cores of this machine are equally fast, so the slow process sleeps: after the back-propagation of each batch, for so
many times the processor time that it has computed for. While it sleeps the cores are the others', which is why the
processor's time counts and not the clock's.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sparkdl.models.networks import NETWORKS

__all__ = ["Slowed", "slowed"]


class Slowed(nn.Module):
    """Computes as ``network`` does. The process that is the first to train with the mark is the slow one."""

    def __init__(self, network: nn.Module, mark: str, *, times: float) -> None:
        """``mark`` is a file that is not there yet, which all processes reach, ``times`` how slow the slow one is."""
        super().__init__()
        self.network = network
        self.slept = 0.0
        """Seconds."""
        self._mark, self._times = Path(mark), times
        self._slow: bool | None = None
        self._began = 0.0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """What the network says; where there is no gradient to come, as fast as it can."""
        if torch.is_grad_enabled():
            if self._slow is None:
                self._slow = self._is_first()
                if self._slow:  # the first parameter is the last one that back-propagation comes to
                    next(self.parameters()).register_post_accumulate_grad_hook(self._sleep)
            self._began = time.thread_time()
        logits: torch.Tensor = self.network(rows)
        return logits

    def _is_first(self) -> bool:
        try:
            self._mark.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _sleep(self, _: torch.Tensor) -> None:
        seconds = (self._times - 1) * (time.thread_time() - self._began)
        time.sleep(seconds)
        self.slept += seconds


def slowed(
    *, input_shape: Sequence[int], num_classes: int, network: str, options: dict[str, Any], mark: str, times: float
) -> nn.Module:
    """One of the networks that ``train.model`` names, slowed down on one process."""
    inner = NETWORKS[network](input_shape=input_shape, num_classes=num_classes, **options)
    return Slowed(inner, mark, times=times)
