"""How long a step would take with each strategy and topology, on as many ranks as one likes. Runs on the driver."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from pyspark.sql import SparkSession
from torch import nn

from sparkdl.cluster import get_session, run_ranks
from sparkdl.collectives import TorchBackend, create_backend
from sparkdl.data import Dataset
from sparkdl.errors import ConfigError, ModelError
from sparkdl.inputs.tensors import moved
from sparkdl.layouts import check_may_be_sharded
from sparkdl.planning.cost import TOPOLOGIES, Link, StepCost, fit_link
from sparkdl.planning.layout_costs import LayoutCosts, costs_of_layouts
from sparkdl.planning.measure import measure
from sparkdl.planning.memory import memory_of_rank
from sparkdl.planning.subnet_cost import may_be_dealt, of_sub_networks
from sparkdl.settings import Cluster, Train
from sparkdl.settings.averaging import Averaging, Float16Options, PowerSGDOptions
from sparkdl.settings.strategies import (
    AllReduceOptions,
    DiLoCoOptions,
    EASGDOptions,
    ISTOptions,
    LocalSGDOptions,
    PostLocalSGDOptions,
    RoundsOptions,
    SparkNetOptions,
)
from sparkdl.tables import aligned
from sparkdl.training.model_folder import check_model
from sparkdl.training.some_rows import some_rows
from sparkdl.training.task_to_train import task_to_train

__all__ = ["TrainingPlan", "plan_training"]

STRATEGIES: tuple[Averaging, ...] = (
    AllReduceOptions(),
    AllReduceOptions(compression=Float16Options()),
    AllReduceOptions(compression=PowerSGDOptions()),
    LocalSGDOptions(),
    EASGDOptions(),
    SparkNetOptions(),
    DiLoCoOptions(),
    ISTOptions(),
)
"""What is compared, beside the configuration's own strategy: the last one if the network's neurons can be dealt."""
SHARDED = (AllReduceOptions(shard="optimizer"), AllReduceOptions(shard="all"))
"""What is compared as well where ranks exchange by torch.distributed and the network can be cut into shards."""
WORTHWHILE = 1.1
"""How many times shorter a step has to be for another strategy to be worth a try."""


@dataclass(frozen=True)
class TrainingPlan:
    """What was measured on the ranks of a cluster, and what follows from it."""

    ranks: int
    """How many have measured."""
    link: Link
    model_bytes: int
    measured: dict[str, float]
    """By topology, as far as the backend has it: the seconds of one mean of as many bytes as the model has."""
    strategies: dict[str, StepCost]
    memory: Mapping[str, float] = field(default_factory=dict)
    """Predicted bytes that a rank holds in a step, over Python and its libraries, by strategy as far as it is known."""
    layouts: LayoutCosts | None = None
    """What as many ranks could do together, as far as it was looked at."""
    room: float = math.inf
    """Bytes of memory that each rank may take, over Python and its libraries."""

    def __str__(self) -> str:
        parts = [self.table, self.advice]
        if self.layouts:
            whole = next(iter(self.strategies.values())).computing
            parts.append(f"the same ranks in each layout, with allreduce:\n\n{self.layouts.table(self.link, whole)}")
            parts.append(self.layouts.advice(self.link, whole, self.room))
        return "\n\n".join(parts)

    def seconds(self, strategy: str, topology: str = "ring", ranks: int | None = None) -> float:
        """Predicted seconds of a step, by default on as many ranks as have measured."""
        return self.strategies[strategy].seconds(self.link, ranks or self.ranks, TOPOLOGIES[topology])

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
        return f"{self._measured}\n\n{aligned(lines)}"

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
        predicted = self.link.seconds(TOPOLOGIES["ring"](self.model_bytes, self.ranks))
        speed = (
            "more than can be measured" if math.isinf(self.link.bandwidth) else f"{self.link.bandwidth / 1e6:,.0f} MB/s"
        )
        return (
            f"between {self.ranks} ranks: {1e6 * self.link.start:,.0f} µs to start a message, then {speed}; a mean of"
            f" the model's {self.model_bytes / 1e6:,.1f} MB took {1000 * self.measured['ring']:,.1f} ms (predicted:"
            f" {1000 * predicted:,.1f})"
        )


def plan_training(
    dataset: Dataset | str,
    settings: Train | None = None,
    *,
    cluster: Cluster | None = None,
    spark: SparkSession | None = None,
) -> TrainingPlan:
    """Measure network and model on the cluster's ranks, for some seconds, and predict each strategy's steps.

    Runs on the driver. Raises :class:`~sparkdl.errors.ConfigError` for a single rank, which exchanges nothing, and what
    :func:`sparkdl.train` raises for a model that does not fit the dataset, or for too few slots.
    """
    settings, cluster = settings or Train(), cluster or Cluster()
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    ranks = cluster.ranks.max
    if cluster.ranks_of_replica > 1:
        raise ConfigError(
            f"plan-training compares all layouts of as many ranks; set cluster.num_ranks to {ranks} in place of"
            " cluster.layout"
        )
    if ranks < 2:
        raise ConfigError(
            "a single rank exchanges nothing, so there is nothing to plan; set cluster.num_ranks to 2 or more"
        )
    model = check_model(dataset, settings, ranks=ranks)
    rows = moved(some_rows(dataset), next(model.parameters()).device)
    own = settings.strategy
    if not isinstance(own, Averaging):
        raise ConfigError(
            f"train.strategy is {own.model_dump()['kind']}, whose workers are not in lockstep; only strategies"
            " in lockstep are planned"
        )
    if isinstance(own, PostLocalSGDOptions):
        own = LocalSGDOptions(period=own.period, topology=own.topology)  # which it becomes
    if isinstance(own, RoundsOptions):  # its epochs of sub-networks
        own = own.model_copy(update={"allreduce_first": 0, "allreduce_last": 0})
    compared = STRATEGIES if may_be_dealt(model, rows, ranks=ranks) else STRATEGIES[:-1]
    backend = create_backend(cluster.backend, needs_torch=own.needs_torch)
    if isinstance(backend, TorchBackend) and _may_be_sharded(model, settings):
        compared = (*compared, *SHARDED)
    strategies = {_name(each): each for each in (*compared, own)}
    found = run_ranks(
        partial(measure, dataset, settings, backend, strategies),
        ranks,
        spark=spark or get_session(cluster),
        backend=backend,
        description="sparkdl plan-training",
        slot_timeout=cluster.slot_timeout,
        resources=cluster.resources,
    )[0]
    steps, whole = dict(found.steps), found.steps[_name(STRATEGIES[0])].computing
    for name, options in strategies.items():
        if isinstance(options, RoundsOptions):
            steps[name] = of_sub_networks(steps[name], options, model, rows, whole=whole, ranks=ranks)
    memory = {
        name: memory_of_rank(
            model, rows, settings.model_copy(update={"strategy": options}), ranks=ranks, batch=settings.batch_size
        ).total
        for name, options in strategies.items()
        if isinstance(options, AllReduceOptions) and not options.compression
    }
    layouts = costs_of_layouts(model, rows, settings, task_to_train(dataset.card, settings), ranks=ranks)
    link = fit_link(found.exchanges)
    return TrainingPlan(ranks, link, found.model_bytes, found.topologies, steps, memory, layouts, found.room)


def _may_be_sharded(model: nn.Module, settings: Train) -> bool:
    """Whether the settings and the network allow shards."""
    try:
        settings.model_copy(update={"strategy": SHARDED[0]})
        check_may_be_sharded(model)
    except (ConfigError, ModelError):
        return False
    return True


def _name(strategy: Averaging) -> str:
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
