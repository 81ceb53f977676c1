"""What the benchmark has measured, as a file: the table and the picture are made from it alone."""

from statistics import median

from pydantic import BaseModel

from sparkdl.planning.cost import Link

__all__ = ["Confirmation", "Exchange", "MethodResults", "OnLink", "Results"]


class OnLink(BaseModel):
    """What a step of a method takes on one link."""

    seconds: float
    megabytes: float
    """That a host sends in a step, counted at its interface, headers included."""
    exchanging: float
    """The part of the time that ranks wait for an exchange."""
    predicted: float
    """Seconds, by the cost model."""


class MethodResults(BaseModel):
    """What a method takes."""

    name: str
    rate: float
    """The best of the learning rates that were tried."""
    curves: list[dict[int, float]]
    """For each seed: accuracy on the validation rows by the number of steps before."""
    test: list[float]
    """For each seed: accuracy on the test rows at the end."""
    links: dict[str, OnLink] = {}

    def steps_to(self, target: float) -> list[int | None]:
        """For each seed: the steps before the first look that found the target reached; None if none did."""
        return [next((step for step, found in curve.items() if found >= target), None) for curve in self.curves]

    def median_steps_to(self, target: float) -> int | None:
        """The median over seeds, None if it is of one that has not got there."""
        steps = sorted(self.steps_to(target), key=lambda each: (each is None, each))
        return steps[(len(steps) - 1) // 2]

    @property
    def final(self) -> float:
        """Accuracy on the validation rows at the end: the median over seeds."""
        return median(list(curve.values())[-1] for curve in self.curves)


class Confirmation(BaseModel):
    """A whole run on a link, beside the product of steps and seconds."""

    method: str
    link: str
    steps: int
    seconds: float
    product: float


class Exchange(BaseModel):
    """A mean of some bytes over all ranks, on the slowest link."""

    hosts: int
    """Among which the ranks are divided."""
    topology: str
    megabytes: float
    seconds: float
    predicted: float | None
    """By the cost model, None for what it does not know: several ranks that share a host's link."""


class Results(BaseModel):
    """One run of the benchmark."""

    ranks: int
    rows: int
    """Of a batch on each rank."""
    network: str
    target: float
    steps: int
    """Of a whole training."""
    tries: int
    links: dict[str, Link] = {}
    """By name: what the cost model knows of them, from exchanges of three sizes."""
    methods: list[MethodResults] = []
    confirmations: list[Confirmation] = []
    exchanges: list[Exchange] = []
    finished: bool = False
    """Whether all has been measured."""

    @property
    def near_the_best(self) -> float:
        """1.5 points below the end of the first method, all-reduce: a target that is not an easy mark."""
        return self.methods[0].final - 0.015
