"""How the ranks of a host share its cores, and what they do beside computing. Runs on ranks."""

import time
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

import torch

from sparkdl.collectives import Communicator
from sparkdl.planning.turns import turn_seconds

__all__ = ["Cores", "busy", "measure_cores"]

SIDE, PRODUCTS = 384, 40
"""The side of matrices, and the number of products: long enough for ranks to take turns on a core."""
REPEATS = 3


class Cores(NamedTuple):
    """A rank's share of the cores of its host."""

    threads: int
    """The number of PyTorch's threads."""
    slowdown: float = 1.0
    """The factor by which a rank computes slower while all others compute; above 1 where ranks share cores."""
    turn: float = 0.0
    """Seconds of a microbatch in a pipeline, besides the passes of its stages, while all ranks are busy."""


def measure_cores(world: Communicator, device: torch.device) -> Cores:
    """Compute on all ranks at the same time, and on the first rank alone. All ranks call it together."""
    threads = torch.get_num_threads()
    turn = turn_seconds(world, device)
    if device.type == "cuda":
        return Cores(threads, turn=turn)
    at_once = _seconds(busy, world)
    alone = _seconds(busy if world.rank == 0 else None, world)
    return Cores(threads, max(1.0, at_once / alone), turn)


def busy(products: int = PRODUCTS) -> None:
    """Compute, as in a training step."""
    matrix = torch.ones(SIDE, SIDE)
    for _ in range(products):
        matrix @ matrix


def _seconds(work: Callable[[], None] | None, world: Communicator) -> float:
    """The median time of the ranks that have work, without the first repetition."""
    seconds = []
    for _ in range(1 + REPEATS):
        world.barrier()
        started = time.perf_counter()
        if work:
            work()
        seconds.append(time.perf_counter() - started if work else 0.0)
    found = torch.stack(world.all_gather(torch.tensor(seconds[1:])))
    return float(median(found[found.sum(dim=1) > 0].flatten().tolist()))
