"""The memory of a rank for a step, with whole or sharded replicas, computed from the network without a measurement."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from sparkdl.inputs.tensors import Inputs, answer, count_rows
from sparkdl.layouts.units import units_of
from sparkdl.models import in_mode, logits_of
from sparkdl.settings import Train
from sparkdl.settings.strategies import AllReduceOptions
from sparkdl.training.recipes.recipe import build_optimizer

__all__ = ["RankMemory", "memory_of_rank", "numbers_kept", "saved_bytes"]

T = TypeVar("T")

SCATTERED, GATHERED = 3, 3
"""How many times the weights of the largest unit are in memory during its sharded back-propagation: as gathered weights
(with receive buffers, and those of the next unit), and as gradients (with send buffers, and the backend's copies)."""
COPIED_BYTES = 16 << 20
"""Bytes of copies of gradients that are exchanged at a time, for whole replicas."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes at a rank's peak within a step, beyond those of Python and its libraries, by purpose."""

    weights: float
    gradients: float
    moments: float
    """The optimizer's state."""
    travelling: float
    """Buffers for weights and gradients that are exchanged with other ranks."""
    activations: float
    """Values that the forward pass keeps for back-propagation."""

    @property
    def total(self) -> float:
        """The sum of all purposes."""
        return self.weights + self.gradients + self.moments + self.travelling + self.activations


def memory_of_rank(model: nn.Module, rows: Inputs, settings: Train, *, ranks: int, batch: int) -> RankMemory:
    """The memory of one of ``ranks`` ranks for a step over ``batch`` rows. Runs on the driver.

    ``rows`` are example rows. Ranks have whole replicas, except with sharded all-reduce. If several ranks share a
    replica, ``model`` is the part of one rank (:func:`sparkdl.layouts.part_alone`), and ``ranks`` is the number of
    ranks with the same part of other replicas.
    """
    trained = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    moments = trained * numbers_kept(settings)
    activations = _activations(model, rows) * batch / count_rows(rows)
    shard = settings.strategy.shard if isinstance(settings.strategy, AllReduceOptions) else None
    if ranks == 1 or shard is None:
        travelling = 0.0 if ranks == 1 else float(min(COPIED_BYTES, 2 * trained))
        return RankMemory(weights, trained, moments, travelling, activations)
    largest = _largest_unit(model)
    whole = weights + SCATTERED * largest if shard == "optimizer" else (SCATTERED + GATHERED) * largest
    return RankMemory(weights / ranks, trained / ranks, moments / ranks, whole, activations)


def _largest_unit(model: nn.Module) -> float:
    """Bytes of the largest unit of weights that is gathered at a time."""
    seen: set[int] = set()
    largest = 0.0
    for unit in [*units_of(model), model]:
        own = [parameter for parameter in unit.parameters() if id(parameter) not in seen]
        seen |= {id(parameter) for parameter in own}
        largest = max(largest, sum(parameter.nbytes for parameter in own))
    return largest


def numbers_kept(settings: Train) -> float:
    """How many numbers the optimizer keeps for each weight, measured on a small matrix."""
    layer = nn.Linear(64, 64, bias=False)
    optimizer = build_optimizer(settings, layer)
    layer.weight.grad = torch.zeros_like(layer.weight)
    optimizer.step()
    state = optimizer.state[layer.weight]
    kept = sum(value.nbytes for value in state.values() if isinstance(value, torch.Tensor) and value.ndim)
    return float(kept / layer.weight.nbytes)


def _activations(model: nn.Module, rows: Inputs) -> float:
    """Bytes that autograd keeps of a forward pass over some rows, without weights."""
    with in_mode(model, training=True), torch.random.fork_rng(devices=[]):
        _, found = saved_bytes(lambda: logits_of(answer(model, rows)), model.parameters())
    return found


def saved_bytes(run: Callable[[], T], weights: Iterable[torch.Tensor]) -> tuple[T, float]:
    """The result of ``run``, and the bytes that autograd keeps for it, without these tensors."""
    left_out = {weight.untyped_storage().data_ptr() for weight in weights}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in left_out:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = run()
        return found, float(sum(kept.values()))
