"""What one server holds: its slices of all values, and what has been merged into them. Runs on a server.

A push is known by the portion of rows that it was computed from and its number within that portion. So it counts once,
whoever computes it and however often it arrives: workers may repeat pushes, and do each other's portions again.
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
    """What a push says about itself."""

    round: int
    """The epoch: pushes of an older one than the newest come too late."""
    portion: int
    sequence: int
    """Its number within the portion, from 0."""
    version: int
    """Of the values that it was computed from."""
    rate: float
    sums: tuple[float, ...]
    """Figures that are added up over the pushes that count, for example rows and their summed loss."""
    fragment: int | None = None
    """The only one that it is for; None: for all."""
    weight: float = 1.0
    """Beside other pushes, where their mean is merged."""


@dataclass
class Tally:
    """What has been merged in a round."""

    round: int = 0
    applied: dict[int, int] = field(default_factory=dict)
    """By portion: how many of its pushes."""
    sums: list[float] = field(default_factory=list)
    staleness: Counter[int] = field(default_factory=Counter)
    """How many pushes have had which staleness."""


class Part:
    """Values of one server, and the rules by which pushes change them. Its methods may be called by several threads."""

    def __init__(self, partition: Partition, server: int, memory: Memory, rule: Callable[[torch.Tensor], Rule]) -> None:
        """``rule`` is for what is trained; changes of buffers are added."""
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
        """The rules of what is trained, between two pushes."""
        with self._lock:
            yield [rule for block, rule in self._rules.items() if block.trained]

    @property
    def bytes(self) -> int:
        """Of its values, and of each push."""
        return self._memory.content.numel()

    def new_memory(self, fragment: int | None = None) -> Memory:
        """Memory for a push, or for a fragment of one."""
        return self._partition.new_memory(self._server, fragment)

    def pull(self, fragment: int | None = None) -> tuple[int, torch.Tensor]:
        """A copy of all values, or of a fragment's, as they are between two pushes, and their version.

        Who asks for all values gets them with all that was pushed, also where a rule waits for more.
        """
        copy = self.new_memory(fragment)
        with self._lock:
            for block, vector in zip(copy.layout, copy.blocks, strict=True):
                self._rules[block].settle(at_once=fragment is None)
                vector.copy_(self._rules[block].values)
            return self._version, copy.content

    def push(self, push: Push, pushed: Memory) -> bool:
        """Merge a push; says whether it counted, and had not been merged before."""
        with self._lock:
            tally = self._tally
            if push.round > tally.round:
                tally = self._tally = Tally(push.round)
            if push.round < tally.round or push.sequence < tally.applied.get(push.portion, 0):
                return False
            staleness = max(0, self._version - push.version)  # a server that has come back counts from a checkpoint
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
        """How far the round has come, as plain values."""
        with self._lock:
            return self._plain_tally()

    def state(self) -> dict[str, Any]:
        """A copy of all that it is made of between two pushes: tensors and plain values."""
        with self._lock:
            return {
                "model": {name: each.clone() for name, each in self._slices().items()},
                "rules": [{name: each.clone() for name, each in rule.state().items()} for rule in self._rules.values()],
                "version": self._version,
                "tally": self._plain_tally(),
            }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` gave, of the same server of the same partition under the same rule."""
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
