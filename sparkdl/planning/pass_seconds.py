"""Measures a network's passes on this machine, to compare them with those of a part. Runs on the driver."""

import time
from collections.abc import Callable

import torch
from torch import nn

from sparkdl.inputs.tensors import Inputs, answer, repeated
from sparkdl.models import in_mode, logits_of
from sparkdl.settings import Train
from sparkdl.training.recipes.recipe import build_optimizer

__all__ = ["pass_seconds", "seconds_of_optimizer", "shortest"]

REPEATS = 3
SIDE = 1024
"""The side of a matrix large enough for an optimizer to be limited by memory, as with a large network's weights."""


def shortest(run: Callable[[], object]) -> float:
    """Seconds of the fastest of some runs, because other load on the machine slows runs down."""
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def pass_seconds(model: nn.Module, rows: Inputs, count: int) -> float:
    """Seconds of forward pass and back-propagation over ``count`` copies of the first of ``rows``."""
    given = repeated(rows, count)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def run() -> None:
        torch.autograd.grad(logits_of(answer(model, given)).sum(), weights, allow_unused=True)

    with in_mode(model, training=True), torch.enable_grad(), torch.random.fork_rng(devices=[]):
        return shortest(run)


def seconds_of_optimizer(settings: Train) -> float:
    """Seconds of an optimizer step per trained number, measured on a matrix."""
    layer = nn.Linear(SIDE, SIDE, bias=False)
    optimizer = build_optimizer(settings, layer)
    layer.weight.grad = torch.zeros_like(layer.weight)
    return shortest(optimizer.step) / layer.weight.numel()
