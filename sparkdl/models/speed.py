"""Measures which of several networks computes a batch fastest. Runs anywhere."""

import time
from collections.abc import Sequence
from statistics import median

import torch
from torch import nn

from sparkdl.inputs.tensors import Inputs, answer

__all__ = ["seconds_of_each"]

_ROUNDS = 15


def seconds_of_each(networks: Sequence[nn.Module], rows: Inputs, *, within: float = 1.0) -> list[float]:
    """The median of the seconds that each network takes for these rows. Networks take turns, for ``within`` seconds.

    Each network first runs once without being measured, which allocates its memory, and is measured at least once.
    """
    found: list[list[float]] = [[] for _ in networks]
    with torch.inference_mode():
        for network in networks:
            answer(network, rows)
        ends = time.perf_counter() + within
        while len(found[-1]) < _ROUNDS:
            for network, seconds in zip(networks, found, strict=True):
                started = time.perf_counter()
                answer(network, rows)
                seconds.append(time.perf_counter() - started)
            if time.perf_counter() > ends:
                break
    return [median(seconds) for seconds in found]
