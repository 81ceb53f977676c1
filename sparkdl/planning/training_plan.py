"""How long a step would take with each strategy, topology and layout, on as many ranks as one likes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from sparkdl.planning.cost import TOPOLOGIES, Link, StepCost, exchange
from sparkdl.planning.layout_choice import Choice, Choices
from sparkdl.planning.layout_costs import LayoutCosts
from sparkdl.planning.links import Links
from sparkdl.settings.averaging import Averaging
from sparkdl.settings.strategies import AllReduceOptions
from sparkdl.tables import aligned

__all__ = ["SHARDED", "TrainingPlan", "name_of_strategy"]

SHARDED = (AllReduceOptions(shard="optimizer"), AllReduceOptions(shard="all"))
"""What is compared as well where ranks exchange by torch.distributed and the network can be cut into shards."""
WORTHWHILE = 1.1
"""How many times shorter a step has to be for another strategy to be worth a try."""


@dataclass(frozen=True)
class TrainingPlan:
    """What was measured on the ranks of a cluster, and what follows from it."""

    ranks: int
    """That it is for."""
    links: Links
    """Between them."""
    model_bytes: int
    measured: dict[str, float]
    """By topology, as far as the backend has it: the seconds of one mean of as many bytes as the model has."""
    measured_by: int
    """Ranks of this cluster."""
    link: Link
    """Between those."""
    strategies: dict[str, StepCost]
    """Those that fit into the memory of the ranks that have measured."""
    memory: Mapping[str, float] = field(default_factory=dict)
    """Predicted bytes that a rank holds in a step, over Python and its libraries, by strategy as far as it is known."""
    layouts: LayoutCosts | None = None
    """What as many ranks could do together, as far as it was looked at."""
    room: float = math.inf
    """Bytes of memory that each rank may take, over Python and its libraries."""
    tried: Choices | None = None
    """The layouts, once ranks have tried those that may be the best."""

    def __str__(self) -> str:
        parts = [self.table, self.advice] if self.strategies else [self._measured + self._assumed]
        if self.layouts:
            parts += [f"the same ranks in each layout, with allreduce:\n\n{self.choices.table}", self.choices.advice]
        return "\n\n".join(parts)

    def seconds(self, strategy: str, topology: str = "ring", ranks: int | None = None) -> float:
        """Predicted seconds of a step, by default on as many ranks as the plan is for."""
        ranks = ranks or self.ranks
        return self.strategies[strategy].seconds(self.links.among(ranks), ranks, TOPOLOGIES[topology])

    @property
    def whole(self) -> float:
        """Seconds that a whole replica computes in a step: on a rank, or on the driver if no rank has room for it."""
        for name in map(name_of_strategy, (AllReduceOptions(), *SHARDED)):
            if name in self.strategies:
                return self.strategies[name].computing
        return self.layouts.seconds if self.layouts else math.nan

    @property
    def choices(self) -> Choices:
        """Layouts of as many ranks, and shards, with what is predicted and measured of each: simple ones first."""
        if self.tried:
            return self.tried
        if not self.layouts:
            return Choices([], {}, self.room)
        costs = list(self.layouts.possible.values())
        found = [
            Choice(
                *(cost.layout, AllReduceOptions(), cost.seconds(self.links, self.whole), cost.rows),
                *(cost.memory, cost.traffic.bytes, cost.batches),
            )
            for cost in costs
        ]
        refused = dict(self.layouts.refused)
        return Choices([*found[:1], *self._in_shards(found[0]), *found[1:]], refused, self.room)

    def _in_shards(self, whole: Choice) -> list[Choice]:
        """Replicas in shards, as far as they were measured."""
        found = []
        for options in SHARDED:
            name = name_of_strategy(options)
            if name in self.strategies:
                sent = exchange(self.strategies[name].payload, self.ranks).bytes
                seconds, memory = self.seconds(name), self.memory[name]
                found.append(whole._replace(strategy=options, predicted=seconds, memory=memory, sent=sent))
        return found

    @property
    def table(self) -> str:
        """Milliseconds of a step and memory, one line per strategy and one column per topology."""
        lines = [
            ["ms a step", "MB a rank", "computing", "MB an exchange", *(name.replace("_", " ") for name in TOPOLOGIES)]
        ]
        lines += [
            [
                name,
                f"{self.memory[name] / 1e6:,.0f}" if name in self.memory else "-",
                f"{1000 * cost.computing:,.1f}",
                f"{cost.payload / 1e6:,.2f}",
                *(self._cell(name, topology) for topology in TOPOLOGIES),
            ]
            for name, cost in self.strategies.items()
        ]
        return f"{self._measured}{self._assumed}\n\n{aligned(lines)}"

    @property
    def best(self) -> tuple[str, str]:
        """The strategy and the topology whose steps take least on as many ranks as have measured."""
        pairs = [
            (strategy, topology)
            for strategy, cost in self.strategies.items()
            for topology in TOPOLOGIES
            if topology == "ring" or (cost.adds_up and cost.any_topology)
        ]
        return min(pairs, key=lambda pair: self.seconds(*pair))

    @property
    def advice(self) -> str:
        """What is best for this cluster, in words."""
        first = next(iter(self.strategies))
        topology = min(TOPOLOGIES, key=lambda name: self.seconds(first, name))
        seconds = self.seconds(first, topology)
        share = 1 - self.strategies[first].computing / seconds
        strategy, where = self.best
        gain = seconds / self.seconds(strategy, where)
        sentence = (
            f"on {self.ranks} ranks, {first} is fastest in topology {topology}: {1000 * seconds:,.1f} ms a step, of"
            f" which {share:.0%} are for the exchange"
        )
        if gain < WORTHWHILE:
            return f"{sentence}. No other strategy would make steps much shorter: stay with {first}."
        return (
            f"{sentence}. The shortest steps are those of {strategy} in topology {where}: {first} takes {gain:,.1f}"
            f" times as long. {strategy} pays as long as it needs fewer than {gain:,.1f} times as many steps to the"
            " same accuracy."
        )

    def _cell(self, strategy: str, topology: str) -> str:
        cost = self.strategies[strategy]
        possible = topology == "ring" or (cost.adds_up and cost.any_topology)
        return f"{1000 * self.seconds(strategy, topology):,.1f}" if possible else "-"

    @property
    def _measured(self) -> str:
        predicted = self.link.seconds(TOPOLOGIES["ring"](self.model_bytes, self.measured_by))
        speed = (
            "more than can be measured" if math.isinf(self.link.bandwidth) else f"{self.link.bandwidth / 1e6:,.0f} MB/s"
        )
        return (
            f"between {self.measured_by} ranks: {1e6 * self.link.start:,.0f} µs to start a message, then {speed}; a"
            f" mean of the model's {self.model_bytes / 1e6:,.1f} MB took {1000 * self.measured['ring']:,.1f} ms"
            f" (predicted: {1000 * predicted:,.1f})"
        )

    @property
    def _assumed(self) -> str:
        """The cluster that the plan is for, where it is not the one that has measured."""
        hosts = ceil(self.ranks / self.links.ranks_of_host)
        if self.ranks == self.measured_by and self.links.between == self.link:
            return ""
        between = f", between which {8e-6 * self.links.between.bandwidth:,.0f} Mbit/s are assumed" if hosts > 1 else ""
        return f"\npredicted for {self.ranks:,} ranks on {hosts:,} host{'s' if hosts > 1 else ''}{between}"


def name_of_strategy(strategy: Averaging) -> str:
    """What a strategy is called in the plan."""
    chosen = strategy.model_dump()
    compression = chosen.get("compression")
    parts = [
        chosen["kind"],
        compression and compression["kind"],
        chosen.get("shard") and f"shard: {chosen['shard']}",
        "period" in chosen and f"every {chosen['period']} steps",
    ]
    return ", ".join(part for part in parts if part)
