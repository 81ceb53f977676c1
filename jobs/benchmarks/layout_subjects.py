"""What ``jobs/benchmark.py layouts`` trains, on which rows, and how it looks at a rank meanwhile."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from sparkdl.data import Batch

__all__ = [
    "CLASSES",
    "RATE",
    "WARM_UP",
    "Encoder",
    "Layout",
    "Measured",
    "Network",
    "batches",
    "first_steps",
    "watched",
]

CLASSES, WARM_UP = 10, 5
RATE = 1e-5
"""Of Adam, which makes steps of this size of gradients that are nothing but rounding."""
LOOK_SECONDS = 0.002  # between two looks at the memory of a rank


class Layout(NamedTuple):
    """How a model lies on ranks."""

    name: str
    ranks: int
    shard: str | None = None
    tensor: int = 1
    pipeline: int = 1
    """Ranks that share a replica, in parts of each layer or in stages."""
    experts: int = 1
    """Ranks that share experts."""
    by_hand: bool = False

    @property
    def ranks_of_replica(self) -> int:
        """How many share one."""
        return self.tensor * self.pipeline

    @property
    def replicas(self) -> int:
        """Which learn from different rows."""
        return self.ranks // self.ranks_of_replica


class Network(NamedTuple):
    """What is trained."""

    name: str
    build: Callable[[], nn.Module]
    rows: int
    """Of a step, of all ranks."""
    width: int
    """Numbers of a row."""


class Encoder(nn.Module):
    """A transformer over 32 tokens."""

    def __init__(self, *, width: int, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(1_000, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 4 * width, 0.0, batch_first=True) for _ in range(layers)
        )
        self.leave = nn.Linear(width, CLASSES)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits of rows of 32 numbers up to 1, of which each is a token."""
        values = self.table((rows.abs() * 999).long().clamp(max=999))
        for block in self.blocks:
            values = block(values)
        answer: torch.Tensor = self.leave(values.mean(dim=1))
        return answer


class Measured(NamedTuple):
    """What rank 0 has seen."""

    loss: float
    """Of all rows of the last step, before it."""
    milliseconds: float
    """Of a step: the median."""
    peak: float
    """Bytes of the largest rank in steps, over what it held before the network was built."""
    computing: float = 0.0
    """Milliseconds of a step without those in which it waits for other ranks, of ours."""


def batches(network: Network, layout: Layout, rank: int) -> Iterator[Batch]:
    """The rows of this rank's replica: those of all are the same in each layout."""
    replica = rank // layout.ranks_of_replica
    generator = torch.Generator().manual_seed(1)
    while True:
        rows = torch.rand(network.rows, network.width, generator=generator)
        labels = rows[:, :CLASSES].argmax(dim=1)
        mine = slice(replica * network.rows // layout.replicas, (replica + 1) * network.rows // layout.replicas)
        yield Batch(rows[mine], labels[mine], network.rows)


def first_steps() -> None:
    """Have in memory what PyTorch loads and keeps when it first computes."""
    layer = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(layer.parameters(), fused=True)
    layer(torch.randn(4, 8)).sum().backward()
    optimizer.step()


@contextmanager
def watched() -> Iterator[list[float]]:
    """How many bytes of memory this process has at most more in the block than before it: its first element."""
    before, peak, over = _held(), [0.0], threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            peak[0] = max(peak[0], _held() - before)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        over.set()
        thread.join()


def _held() -> float:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if not found:
        raise OSError("/proc/self/status has no RssAnon; memory is measured on Linux")
    return 1024.0 * int(found[1])
