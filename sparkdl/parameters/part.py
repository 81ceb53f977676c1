"""The state of one server: its slices of all values, and which pushes have been merged. Runs on a server.

A push is identified by its portion of rows and its number within the portion. So each push counts once, no matter which
worker computes it and how often it arrives: workers may repeat pushes, and do each other's portions again.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from sparkdl.parameters.partition import Block, Memory, Partition
from sparkdl.parameters.rules import Additive, Rule

__all__ = ["Part", "Push", "Tally"]


class Push(NamedTuple):
    """The description of a push."""

    round: int
    """The epoch. Pushes of an epoch before the newest are too late and do not count."""
    portion: int
    sequence: int
    """Its number within the portion, from 0."""
    version: int
    """The version of the values that the push was computed from."""
    rate: float
    sums: tuple[float, ...]
    """Figures that servers add up over the pushes that count, for example rows and their summed loss."""
    fragment: int | None = None
    """The fragment that the push is for; None: all fragments."""
    weight: float = 1.0
    """The weight of the push, for rules that merge a mean of several pushes."""


@dataclass
class Tally:
    """The pushes that have been merged in a round."""

    round: int = 0
    applied: dict[int, int] = field(default_factory=dict)
    """By portion: how many of its pushes have been merged."""
    sums: list[float] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    """The number of pushes, by their staleness."""


class Part:
    """A server's values, and the rules by which pushes change them. Methods may be called by several threads."""

    def __init__(self, partition: Partition, server: int, memory: Memory, rule: Callable[[torch.Tensor], Rule]) -> None:
        """``rule`` merges pushes of trained parameters; changes of buffers are added."""
        self._partition, self._server, self._memory = partition, server, memory
        self._rules: dict[Block, Rule] = {
            block: (rule if block.trained else Additive)(values)
            for block, values in zip(partition.blocks, memory.blocks, strict=True)
        }
        self._lock = threading.Lock()
        self._version = 0
        self._tally = Tally()

    @contextmanager
    def paused(self) -> Iterator[list[Rule]]:
        """The rules of the trained parameters, while no push is merged."""
        with self._lock:
            yield [rule for block, rule in self._rules.items() if block.trained]

    @property
    def bytes(self) -> int:
        """The size of the values, and of each push."""
        return self._memory.content.numel()

    def new_memory(self, fragment: int | None = None) -> Memory:
        """Memory for a push, or for a fragment of one."""
        return self._partition.new_memory(self._server, fragment)

    def pull(self, fragment: int | None = None) -> tuple[int, torch.Tensor]:
        """The version, and a consistent copy of all values or of a fragment's.

        A pull of all values first merges all pushes, even if a rule waits for more of them.
        """
        copy = self.new_memory(fragment)
        with self._lock:
            for block, vector in zip(copy.layout, copy.blocks, strict=True):
                self._rules[block].settle(at_once=fragment is None)
                vector.copy_(self._rules[block].values)
            return self._version, copy.content

    def push(self, push: Push, pushed: Memory) -> bool:
        """Merge a push; returns whether it counted: it was in time, and had not been merged before."""
        with self._lock:
            tally = self._tally
            if push.round > tally.round:
                tally = self._tally = Tally(push.round)
            if push.round < tally.round or push.sequence < tally.applied.get(push.portion, 0):
                return False
            staleness = max(0, self._version - push.version)  # a restarted server counts from its checkpoint
            for block, vector in zip(pushed.layout, pushed.blocks, strict=True):
                self._rules[block].merge(vector, rate=push.rate, staleness=staleness, weight=push.weight)
            self._version += 1
            tally.applied[push.portion] = push.sequence + 1
            tally.sums = [a + b for a, b in zip(tally.sums or [0.0] * len(push.sums), push.sums, strict=True)]
            tally.staleness[staleness] += 1
            return True

    def applied(self, round: int, portion: int) -> dict[str, int]:
        """How many pushes of a portion have been merged."""
        with self._lock:
            return {"pushes": self._tally.applied.get(portion, 0) if self._tally.round == round else 0}

    def tally(self) -> dict[str, Any]:
        """The tally of the round, as plain values."""
        with self._lock:
            return self._plain_tally()

    def state(self) -> dict[str, Any]:
        """A consistent copy of the part's state: tensors and plain values."""
        with self._lock:
            return {
                "model": {name: each.clone() for name, each in self._slices().items()},
                "rules": [{name: each.clone() for name, each in rule.state().items()} for rule in self._rules.values()],
                "version": self._version,
                "tally": self._plain_tally(),
            }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state` of the same server, partition and rule."""
        with self._lock:
            for name, values in self._slices().items():
                values.copy_(state["model"][name])
            for rule, remembered in zip(self._rules.values(), state["rules"], strict=True):
                rule.load(remembered)
            self._version = state["version"]
            tally = state["tally"]
            self._tally = Tally(
                tally["round"], dict(tally["applied"]), list(tally["sums"]), Counter(dict(tally["staleness"]))
            )

    def _slices(self) -> dict[str, torch.Tensor]:
        return self._partition.slices(self._server, self._memory)

    def _plain_tally(self) -> dict[str, Any]:
        tally = self._tally
        pairs = {"applied": list(tally.applied.items()), "staleness": list(tally.staleness.items())}
        return {"round": tally.round, "version": self._version, "sums": list(tally.sums), **pairs}
