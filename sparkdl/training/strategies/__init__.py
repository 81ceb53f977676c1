"""How replicas are synchronised: one file per strategy."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

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
from sparkdl.training.strategies.strategy import Strategy

__all__ = ["KINDS", "Kind", "Strategy", "create_strategy", "strategy_of"]


class Assembler(Protocol):
    """Computes the consensus from the shards of a checkpoint; see :meth:`Strategy.assemble`."""

    def assemble(self, state: Mapping[str, Any], replicas: Iterable[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
        """Compute the weights of the consensus."""


class StrategyContext(NamedTuple):
    """What a strategy is created from, besides its options."""

    settings: Train
    communicator: Communicator
    """The ranks that each have a replica."""
    averager: Averager


class Kind(NamedTuple):
    """A kind of ``train.strategy``."""

    create: Callable[[Any, StrategyContext], Strategy]
    """Creates the strategy from its options. All ranks call it together."""
    assembler: Assembler = Strategy
    """Computes the consensus from the strategy's checkpoints."""


def _allreduce(options: AllReduceOptions, context: StrategyContext) -> Strategy:
    if options.shard:
        from sparkdl.training.strategies.sharded_allreduce import ShardedAllReduce  # PyTorch's DTensor takes 0.5 s

        return ShardedAllReduce(context.communicator, context.averager, shard=options.shard)
    return AllReduce(context.communicator, context.averager, measure_noise=options.measure_noise)


def _local_sgd(options: LocalSGDOptions, context: StrategyContext) -> Strategy:
    averaged = options.momentum == "averaged"
    return LocalSGD(context.communicator, context.averager, period=options.period, average_momentum=averaged)


def _easgd(options: EASGDOptions | DeepSparkOptions, context: StrategyContext) -> Strategy:
    return EASGD(options, context.communicator, context.averager)


def _ist(options: ISTOptions, context: StrategyContext) -> Strategy:
    settings, communicator, averager = context
    if options.sharded:
        return ShardedIST(options, communicator, averager, seed=settings.seed)
    return IST(options, communicator, averager, seed=settings.seed, epochs=settings.epochs)


def _resist(options: ResISTOptions, context: StrategyContext) -> Strategy:
    settings, communicator, averager = context
    return ResIST(options, communicator, averager, seed=settings.seed, epochs=settings.epochs)


KINDS: dict[type[Averaging], Kind] = {
    AllReduceOptions: Kind(_allreduce),
    LocalSGDOptions: Kind(_local_sgd),
    SparkNetOptions: Kind(
        lambda options, context: LocalSGD(context.communicator, context.averager, period=options.period),
    ),
    PostLocalSGDOptions: Kind(
        lambda options, context: PostLocalSGD(options, context.communicator, context.averager),
    ),
    DiLoCoOptions: Kind(
        lambda options, context: DiLoCo(options, context.communicator, context.averager),
    ),
    EASGDOptions: Kind(_easgd, EASGD),
    DeepSparkOptions: Kind(_easgd, EASGD),
    HogwildOptions: Kind(
        lambda options, context: Hogwild(options, context.communicator),
    ),
    ISTOptions: Kind(_ist, IST),
    ResISTOptions: Kind(_resist, ResIST),
}
"""The synchronous strategies, by their class of options."""
SERVED = "downpour", "async_easgd", "decoupled_diloco", "sandblaster"
"""Strategies with parameter servers, whose checkpoints have the servers' slices of the model."""


def create_strategy(settings: Train, groups: Groups, part: SharedPart | None = None) -> Strategy:
    """Create the strategy of ``train.strategy`` for the ranks that each have a replica. All ranks call it together.

    Where each rank has a ``part`` of a replica, the strategy is all-reduce.
    """
    options = settings.strategy
    if not isinstance(options, Averaging):
        raise TypeError(f"{type(options).__qualname__} needs parameter servers, and cannot run on synchronous ranks")
    context = StrategyContext(settings, groups.data, create_averager(options, groups.data))
    if isinstance(part, ExpertParallel):
        return ExpertAllReduce(groups.data, context.averager, part, create_averager(options, part.alike))
    if part:
        return PartAllReduce(groups.data, context.averager, part, everyone=groups.world)
    return KINDS[type(options)].create(options, context)


def strategy_of(kind: str) -> Assembler:
    """Computes the consensus from a checkpoint of this kind of strategy."""
    if kind in SERVED:
        return SlicedModel
    assemblers = {options.model_fields["kind"].default: each.assembler for options, each in KINDS.items()}
    return assemblers.get(kind, Strategy)
