"""How replicas are synchronised: one file per strategy."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from sparkdl.collectives import Averager, Communicator, create_averager
from sparkdl.layouts import ExpertParallel
from sparkdl.settings import Train
from sparkdl.settings.averaging import Averaging
from sparkdl.settings.strategies import (
    AllReduceOptions,
    DeepSparkOptions,
    DiLoCoOptions,
    EASGDOptions,
    HogwildOptions,
    ISTOptions,
    LocalSGDOptions,
    PostLocalSGDOptions,
    ResISTOptions,
    SparkNetOptions,
)
from sparkdl.training.asynchronous.assemble import SlicedModel
from sparkdl.training.groups import Groups
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.diloco import DiLoCo
from sparkdl.training.strategies.easgd import EASGD
from sparkdl.training.strategies.expert_allreduce import ExpertAllReduce
from sparkdl.training.strategies.hogwild import Hogwild
from sparkdl.training.strategies.ist import IST
from sparkdl.training.strategies.keeps_part import SharedPart
from sparkdl.training.strategies.local_sgd import LocalSGD
from sparkdl.training.strategies.part_allreduce import PartAllReduce
from sparkdl.training.strategies.post_local_sgd import PostLocalSGD
from sparkdl.training.strategies.resist import ResIST
from sparkdl.training.strategies.sharded_ist import ShardedIST
from sparkdl.training.strategies.stepping_parts import PartDiLoCo, PartEASGD, PartLocalSGD
from sparkdl.training.strategies.strategy import Strategy

__all__ = ["KINDS", "Kind", "Strategy", "create_strategy", "strategy_of"]

S = TypeVar("S", bound=Strategy)


class Assembler(Protocol):
    """Computes the consensus from the shards of a checkpoint; see :meth:`Strategy.assemble`."""

    def assemble(self, state: Mapping[str, Any], replicas: Iterable[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
        """Compute the weights of the consensus."""


class StrategyContext(NamedTuple):
    """What a strategy is created from, besides its options."""

    settings: Train
    groups: Groups
    averager: Averager
    """Averages over the ranks of ``groups.data``."""
    part: SharedPart | None = None
    """This rank's part of a replica that several ranks share; None if each rank has one."""

    @property
    def communicator(self) -> Communicator:
        """The ranks that each have a replica, or the same part of one."""
        return self.groups.data

    def fitting(self, whole: Callable[..., S], parted: Callable[..., S]) -> Callable[..., S]:
        """The class for whole replicas, or the one for replicas that several ranks share, which takes the part, too."""
        return partial(parted, self.part, self.groups.replica) if self.part else whole


class Kind(NamedTuple):
    """A kind of ``train.strategy``."""

    create: Callable[[Any, StrategyContext], Strategy]
    """Creates the strategy from its options. All ranks call it together."""
    assembler: Assembler = Strategy
    """Computes the consensus from the strategy's checkpoints."""
    needs_whole: str = ""
    """What the strategy does with whole replicas, so that ranks cannot share them; empty if they can."""


def _allreduce(options: AllReduceOptions, context: StrategyContext) -> Strategy:
    part, averager = context.part, context.averager
    if isinstance(part, ExpertParallel):
        return ExpertAllReduce(context.communicator, averager, part, create_averager(options, part.alike))
    if part:
        return PartAllReduce(context.communicator, averager, part, everyone=context.groups.world)
    if options.shard:
        from sparkdl.training.strategies.sharded_allreduce import ShardedAllReduce  # PyTorch's DTensor takes 0.5 s

        return ShardedAllReduce(context.communicator, averager, shard=options.shard)
    return AllReduce(context.communicator, averager, measure_noise=options.measure_noise)


def _local_sgd(options: LocalSGDOptions | PostLocalSGDOptions, context: StrategyContext) -> Strategy:
    create, averaged = context.fitting(LocalSGD, PartLocalSGD), options.momentum == "averaged"
    return create(context.communicator, context.averager, period=options.period, average_momentum=averaged)


def _sparknet(options: SparkNetOptions, context: StrategyContext) -> Strategy:
    return context.fitting(LocalSGD, PartLocalSGD)(context.communicator, context.averager, period=options.period)


def _post_local_sgd(options: PostLocalSGDOptions, context: StrategyContext) -> Strategy:
    first, then = _allreduce(AllReduceOptions(), context), _local_sgd(options, context)
    return PostLocalSGD(first, then, after_epochs=options.after_epochs)


def _diloco(options: DiLoCoOptions, context: StrategyContext) -> Strategy:
    return context.fitting(DiLoCo, PartDiLoCo)(options, context.communicator, context.averager)


def _easgd(options: EASGDOptions | DeepSparkOptions, context: StrategyContext) -> Strategy:
    return context.fitting(EASGD, PartEASGD)(options, context.communicator, context.averager)


def _ist(options: ISTOptions, context: StrategyContext) -> Strategy:
    settings, given = context.settings, (options, context.communicator, context.averager)
    if options.sharded:
        return ShardedIST(*given, seed=settings.seed)
    return IST(*given, seed=settings.seed, epochs=settings.epochs)


def _resist(options: ResISTOptions, context: StrategyContext) -> Strategy:
    settings = context.settings
    return ResIST(options, context.communicator, context.averager, seed=settings.seed, epochs=settings.epochs)


KINDS: dict[type[Averaging], Kind] = {
    AllReduceOptions: Kind(_allreduce),
    LocalSGDOptions: Kind(_local_sgd),
    SparkNetOptions: Kind(_sparknet),
    PostLocalSGDOptions: Kind(_post_local_sgd),
    DiLoCoOptions: Kind(_diloco),
    EASGDOptions: Kind(_easgd, EASGD),
    DeepSparkOptions: Kind(_easgd, EASGD),
    HogwildOptions: Kind(
        lambda options, context: Hogwild(options, context.communicator),
        needs_whole="has the ranks of a host step on one copy of the whole network",
    ),
    ISTOptions: Kind(_ist, IST, needs_whole="deals out the neurons of a whole network"),
    ResISTOptions: Kind(_resist, ResIST, needs_whole="deals out the residual blocks of a whole network"),
}
"""The synchronous strategies, by their class of options."""
SERVED = "downpour", "async_easgd", "decoupled_diloco", "sandblaster"
"""Strategies with parameter servers, whose checkpoints have the servers' slices of the model."""


def create_strategy(settings: Train, groups: Groups, part: SharedPart | None = None) -> Strategy:
    """Create the strategy of ``train.strategy`` for the ranks that each have a replica. All ranks call it together.

    ``part`` is this rank's part of a replica, if several ranks share one.
    """
    options = settings.strategy
    if not isinstance(options, Averaging):
        raise TypeError(f"{type(options).__qualname__} needs parameter servers, and cannot run on synchronous ranks")
    context = StrategyContext(settings, groups, create_averager(options, groups.data), part)
    return KINDS[type(options)].create(options, context)


def strategy_of(kind: str) -> Assembler:
    """Computes the consensus from a checkpoint of this kind of strategy."""
    if kind in SERVED:
        return SlicedModel
    assemblers = {options.model_fields["kind"].default: each.assembler for options, each in KINDS.items()}
    return assemblers.get(kind, Strategy)
