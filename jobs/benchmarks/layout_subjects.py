"""What ``jobs/benchmark.py layouts`` trains, on which rows, and how it looks at a rank meanwhile."""

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from sparkdl.data import Batch
from sparkdl.models.networks import lenet
from sparkdl.settings import RankLayout
from sparkdl.settings.cluster import CutStyle

__all__ = [
    "CLASSES",
    "IMAGE",
    "RATE",
    "SIDE",
    "WARM_UP",
    "Encoder",
    "EncoderThenWide",
    "Layout",
    "Measured",
    "Network",
    "Residual",
    "WideEmbedding",
    "batches",
    "convolutions_then_wide_layers",
    "first_steps",
    "watched",
]

CLASSES, WARM_UP = 10, 5
IMAGE = 3, 32, 32
SIDE = 16
"""Of the images of :class:`Residual`, in pixels."""
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
    plan: Mapping[str, CutStyle] | None = None
    """For ``tensor``: the layers that are cut."""

    @property
    def axes(self) -> RankLayout:
        """As ``cluster.layout`` says it."""
        data = self.ranks // (self.tensor * self.pipeline * self.experts)
        plan = dict(self.plan) if self.plan else None
        return RankLayout(data=data, tensor=self.tensor, pipeline=self.pipeline, experts=self.experts, plan=plan)

    @property
    def ranks_of_replica(self) -> int:
        """How many share one."""
        return self.axes.ranks_of_replica

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
    batch: int | None = None
    """Rows of a batch of one replica, which takes several in a step; by default it takes its rows at once."""

    def batch_of(self, layout: "Layout") -> int:
        """Rows of a batch of each replica."""
        return self.batch or self.rows // layout.replicas


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


class EncoderThenWide(nn.Module):
    """Blocks of a transformer over 64 tokens, and wide layers over all of them together."""

    def __init__(self, *, width: int, layers: int, hidden: int) -> None:
        super().__init__()
        self.enter = nn.Linear(1, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True) for _ in range(layers)
        )
        self.wide = nn.Sequential(nn.Linear(64 * width, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits of rows of 64 numbers."""
        values = self.enter(rows.unsqueeze(-1))
        for block in self.blocks:
            values = block(values)
        answer: torch.Tensor = self.wide(values.flatten(1))
        return answer


class Residual(nn.Module):
    """Blocks of two convolutions, each beside what comes into it, over images of 16 x 16 pixels; then two layers."""

    def __init__(self, *, channels: int, blocks: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Unflatten(1, (3, SIDE, SIDE)), nn.Conv2d(3, channels, 3, padding=1))
        self.blocks = nn.ModuleList(_convolutions(channels) for _ in range(blocks))
        self.last = nn.Sequential(
            *(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(channels * (SIDE // 4) ** 2, hidden), nn.ReLU()),
            nn.Linear(hidden, CLASSES),
        )

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits of images, pixel after pixel."""
        values = self.first(rows)
        for block in self.blocks:
            values = values + block(values)
        answer: torch.Tensor = self.last(values)
        return answer


def _convolutions(channels: int) -> nn.Module:
    layers = [(nn.GroupNorm(4, channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1)) for _ in range(2)]
    return nn.Sequential(*(each for layer in layers for each in layer))


def convolutions_then_wide_layers(width: int) -> nn.Module:
    """LeNet over images of 32 x 32 pixels, pixel after pixel, whose two hidden layers are of this width."""
    layers = lenet(input_shape=IMAGE, num_classes=CLASSES, channels=(32, 64), hidden=(width, width))
    return nn.Sequential(nn.Unflatten(1, IMAGE), layers)


class WideEmbedding(nn.Module):
    """The mean of the vectors of 32 words, and two layers."""

    def __init__(self, *, words: int, width: int) -> None:
        super().__init__()
        self.words = words
        self.table = nn.Embedding(words, width)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits of rows of 32 numbers up to 1, of which each is a word."""
        answer: torch.Tensor = self.layers(self.table((rows * (self.words - 1)).long()).mean(dim=1))
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


def batches(network: Network, layout: Layout, rank: int) -> Iterator[list[Batch]]:
    """Those of each step of this rank's replica: the rows of all replicas are the same in each layout."""
    replica, size = rank // layout.ranks_of_replica, network.batch_of(layout)
    generator = torch.Generator().manual_seed(1)
    while True:
        rows = torch.rand(network.rows, network.width, generator=generator)
        labels = rows[:, :CLASSES].argmax(dim=1)
        begin, end = (place * network.rows // layout.replicas for place in (replica, replica + 1))
        parts = zip(rows[begin:end].split(size), labels[begin:end].split(size), strict=True)
        yield [Batch(own, of_own, layout.replicas * len(own)) for own, of_own in parts]


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
