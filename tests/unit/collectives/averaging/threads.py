"""Ranks as threads of one process: enough for what averagers compute, and quick. Real ones are in ``tests/ranks``."""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, TypeVar

import torch

from sparkdl.collectives.averaging import Averager, advance, finish
from sparkdl.collectives.communicator import Arrival, Messenger, ReduceOp, Wait

T = TypeVar("T")
SECONDS = 30  # in which ranks that wait for each other give up


class Threads:
    """What the ranks of a group have in common."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=SECONDS)
        self.values: list[Any] = [None] * size
        self.messages: dict[tuple[int, int, int], SimpleQueue] = defaultdict(SimpleQueue)
        self.groups: dict[Any, Threads] = {}


class ThreadMessenger(Messenger):
    """One rank. What begins in one order on all ranks is exchanged at once; single messages wait in a queue."""

    def __init__(self, rank: int, group: Threads, hosts: list[str], parent: "ThreadMessenger | None" = None) -> None:
        super().__init__(parent)
        self._rank, self._group, self._hosts, self._splits = rank, group, hosts, 0
        self.bytes_abroad = 0
        """Of single messages to ranks on other hosts."""

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def size(self) -> int:
        return self._group.size

    def split(self, color: int) -> "ThreadMessenger":
        colors = self._gathered(color)
        self._splits += 1
        members = [rank for rank, other in enumerate(colors) if other == color]
        if self.rank == members[0]:
            self._group.groups[self._splits, color] = Threads(len(members))
        self.barrier()
        group = self._group.groups[self._splits, color]
        return ThreadMessenger(members.index(self.rank), group, [self._hosts[rank] for rank in members], self)

    def all_reduce(self, tensor: torch.Tensor, *, op: ReduceOp = "mean") -> torch.Tensor:
        total = torch.stack(self.all_gather(tensor)).sum(0)
        return total / self.size if op == "mean" else total

    def start_mean(self, tensors: Sequence[torch.Tensor], *, name: str) -> Wait:
        with self._counted(*tensors):
            of_all = self._gathered((name, [tensor.clone() for tensor in tensors]))
        assert {each for each, _ in of_all} == {name}

        def wait() -> None:
            for tensor, values in zip(tensors, zip(*(each for _, each in of_all), strict=True), strict=True):
                tensor.copy_((torch.stack(values) / self.size).sum(0))

        return wait

    def start_all_gather(self, tensor: torch.Tensor, *, name: str) -> Arrival:
        with self._counted(tensor):
            of_all = self._gathered((name, tensor.clone()))
        assert {each for each, _ in of_all} == {name}
        return lambda: [values for _, values in of_all]

    def broadcast(self, tensor: torch.Tensor, *, root: int = 0) -> torch.Tensor:
        return self.all_gather(tensor)[root]

    def barrier(self) -> None:
        self._group.barrier.wait()

    def close(self) -> None:
        self._group.barrier.abort()

    def hosts(self) -> list[str]:
        return self._hosts

    def start_send(self, tensor: torch.Tensor, *, target: int, tag: int = 0) -> Wait:
        with self._counted(tensor):
            self._group.messages[self.rank, target, tag].put(tensor.clone())
        self.bytes_abroad += tensor.nbytes if self._hosts[target] != self._hosts[self.rank] else 0
        return lambda: None

    def start_receive(self, tensor: torch.Tensor, *, source: int, tag: int = 0) -> Wait:
        queue = self._group.messages[source, self.rank, tag]

        def wait() -> None:
            tensor.copy_(queue.get(timeout=SECONDS))

        return wait

    def _gathered(self, value: Any) -> list[Any]:
        self._group.values[self.rank] = value
        self.barrier()
        values = list(self._group.values)
        self.barrier()
        return values


def on_threads(size: int, work: Callable[[ThreadMessenger], T], *, hosts: Sequence[str] | None = None) -> list[T]:
    """What each of ``size`` ranks returns."""
    group = Threads(size)
    ranks = [ThreadMessenger(rank, group, list(hosts or ["one"] * size)) for rank in range(size)]

    def run(rank: ThreadMessenger) -> T:
        try:
            return work(rank)
        except BaseException:
            rank.close()
            raise

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(run, ranks))


def average(averager: Averager, *buckets: list[torch.Tensor]) -> None:
    """Exchange several buckets at once, as gradients are."""
    exchanges = [averager.exchange(bucket, key=f"bucket.{number}") for number, bucket in enumerate(buckets)]
    for exchange in exchanges:
        advance(exchange)
    finish(exchanges)
