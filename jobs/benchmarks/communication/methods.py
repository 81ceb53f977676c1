"""What is compared: a new strategy is one line."""

from dataclasses import dataclass, field
from typing import Any

__all__ = ["METHODS", "RATES", "Method"]

RATES = (0.1, 0.05, 0.2, 0.025, 0.4)
"""The learning rates that a method tries, as many of them as every other method: first its usual one, then around."""


@dataclass(frozen=True)
class Method:
    """One way to agree."""

    name: str
    strategy: dict[str, Any]
    """``train.strategy``."""
    cycle: int = 1
    """Steps from one exchange to the next: a time of a step is a mean over some of these."""
    length: int = 1
    """How many times as many steps it trains: more for one that takes many cheap ones."""
    scale: float = 1.0
    """What its usual learning rate is, of :data:`RATES`' first."""
    optimizer: dict[str, Any] = field(default_factory=lambda: {"momentum": 0.9})
    """``train.optimizer_options`` of SGD; none where a method has momentum of its own, or errors that arrive late."""

    def rates(self, tries: int) -> list[float]:
        """The rates to try."""
        return [self.scale * rate for rate in RATES[:tries]]


def _compressed(kind: str, **options: Any) -> dict[str, Any]:
    return {"kind": "allreduce", "compression": {"kind": kind, **options}}


METHODS = (
    Method("all-reduce", {"kind": "allreduce"}),
    Method("local SGD, 32 steps", {"kind": "local_sgd", "period": 32}, cycle=32),
    Method("local SGD, 128 steps", {"kind": "local_sgd", "period": 128}, cycle=128),
    Method("elastic averaging, 16 steps", {"kind": "easgd", "period": 16}, cycle=16),
    Method("DiLoCo, 64 steps", {"kind": "diloco", "period": 64}, cycle=64),
    Method("IST, 120 steps a round", {"kind": "ist", "period": 120}, cycle=120, length=3),
    Method("PowerSGD, rank 4", _compressed("powersgd", rank=4)),
    Method("ATOMO, 10 atoms", _compressed("atomo", atoms=10)),
    Method("top-k, 0.5%", _compressed("topk", ratio=0.005, warmup_epochs=0), optimizer={}),
    Method("signs", _compressed("sign"), scale=8, optimizer={}),
    Method("8 bits", _compressed("int8")),
)
"""The first one is what the others are compared with."""
