"""A network that computes as on slower cores, and on one of all processes as on one that is slower still.

The cores of this machine are equally fast, and there may be fewer of them than workers. So processes sleep: after the
back-propagation of each batch, for so many times the processor time that it has taken. While one sleeps its core is
another's, which is why the processor's time counts and not the clock's.
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

    def __init__(self, network: nn.Module, mark: str | None, *, pace: float, slowness: float) -> None:
        """All take ``pace`` times their processor time, and the slow one ``slowness`` times as long as the others.

        ``mark`` is a file that is not there yet and that all processes reach; without one, none is slow.
        """
        super().__init__()
        self.network = network
        self.slept = 0.0
        """Seconds."""
        self._mark = Path(mark) if mark else None
        self._pace, self._slowness = pace, slowness
        self._times: float | None = None
        """How many times its processor time this process takes; None until it trains."""
        self._began = 0.0

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """What the network says; where there is no gradient to come, as fast as it can."""
        if torch.is_grad_enabled():
            if self._times is None:
                self._times = self._pace * (self._slowness if self._is_first() else 1)
                # The first parameter is the last one that back-propagation comes to.
                next(self.parameters()).register_post_accumulate_grad_hook(self._sleep)
            self._began = time.thread_time()
        logits: torch.Tensor = self.network(rows)
        return logits

    def _is_first(self) -> bool:
        try:
            if self._mark:
                self._mark.touch(exist_ok=False)
        except FileExistsError:
            return False
        return self._mark is not None

    def _sleep(self, _: torch.Tensor) -> None:
        seconds = ((self._times or 1) - 1) * (time.thread_time() - self._began)
        time.sleep(seconds)
        self.slept += seconds


def slowed(
    *,
    input_shape: Sequence[int],
    num_classes: int,
    network: str,
    options: dict[str, Any],
    mark: str | None,
    pace: float,
    slowness: float,
) -> nn.Module:
    """One of the networks that ``train.model`` names, on slower cores."""
    inner = NETWORKS[network](input_shape=input_shape, num_classes=num_classes, **options)
    return Slowed(inner, mark, pace=pace, slowness=slowness)
