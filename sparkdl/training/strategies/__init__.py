"""How replicas agree: one file per strategy."""

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
    """Who knows what the shards of a checkpoint stand for; see :meth:`Strategy.assemble`."""

    def assemble(self, state: Mapping[str, Any], replicas: Iterable[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
        """The weights of the consensus."""


class Asked(NamedTuple):
    """What a strategy is asked for with."""

    settings: Train
    communicator: Communicator
    """The ranks that each have a replica."""
    averager: Averager


class Kind(NamedTuple):
    """A kind of ``train.strategy``."""

    create: Callable[[Any, Asked], Strategy]
    """From its options. All ranks call it together."""
    assembler: Assembler = Strategy
    """Of its checkpoints."""


def _allreduce(options: AllReduceOptions, asked: Asked) -> Strategy:
    if options.shard:
        from sparkdl.training.strategies.sharded_allreduce import ShardedAllReduce  # PyTorch's DTensor takes 0.5 s

        return ShardedAllReduce(asked.communicator, asked.averager, shard=options.shard)
    return AllReduce(asked.communicator, asked.averager, measure_noise=options.measure_noise)


def _local_sgd(options: LocalSGDOptions, asked: Asked) -> Strategy:
    averaged = options.momentum == "averaged"
    return LocalSGD(asked.communicator, asked.averager, period=options.period, average_momentum=averaged)


def _easgd(options: EASGDOptions | DeepSparkOptions, asked: Asked) -> Strategy:
    return EASGD(options, asked.communicator, asked.averager)


def _ist(options: ISTOptions, asked: Asked) -> Strategy:
    settings, communicator, averager = asked
    if options.sharded:
        return ShardedIST(options, communicator, averager, seed=settings.seed)
    return IST(options, communicator, averager, seed=settings.seed, epochs=settings.epochs)


def _resist(options: ResISTOptions, asked: Asked) -> Strategy:
    settings, communicator, averager = asked
    return ResIST(options, communicator, averager, seed=settings.seed, epochs=settings.epochs)


KINDS: dict[type[Averaging], Kind] = {
    AllReduceOptions: Kind(_allreduce),
    LocalSGDOptions: Kind(_local_sgd),
    SparkNetOptions: Kind(
        lambda options, asked: LocalSGD(asked.communicator, asked.averager, period=options.period),
    ),
    PostLocalSGDOptions: Kind(
        lambda options, asked: PostLocalSGD(options, asked.communicator, asked.averager),
    ),
    DiLoCoOptions: Kind(
        lambda options, asked: DiLoCo(options, asked.communicator, asked.averager),
    ),
    EASGDOptions: Kind(_easgd, EASGD),
    DeepSparkOptions: Kind(_easgd, EASGD),
    HogwildOptions: Kind(
        lambda options, asked: Hogwild(options, asked.communicator),
    ),
    ISTOptions: Kind(_ist, IST),
    ResISTOptions: Kind(_resist, ResIST),
}
"""Those of ranks in lockstep, by their options."""
SERVED = "downpour", "async_easgd", "decoupled_diloco", "sandblaster"
"""Those of workers that have servers, of which checkpoints hold the slices."""


def create_strategy(settings: Train, groups: Groups, part: SharedPart | None = None) -> Strategy:
    """The strategy that ``train.strategy`` asks for, for the ranks that each have a replica. All call it together.

    Where ranks have a ``part`` of a network, it is all-reduce.
    """
    options = settings.strategy
    if not isinstance(options, Averaging):
        raise TypeError(f"{type(options).__qualname__} is for workers that have servers, and not for ranks in lockstep")
    asked = Asked(settings, groups.data, create_averager(options, groups.data))
    if isinstance(part, ExpertParallel):
        return ExpertAllReduce(groups.data, asked.averager, part, create_averager(options, part.alike))
    if part:
        return PartAllReduce(groups.data, asked.averager, part, everyone=groups.world)
    return KINDS[type(options)].create(options, asked)


def strategy_of(kind: str) -> Assembler:
    """Who assembles the consensus in a checkpoint of this kind of strategy."""
    if kind in SERVED:
        return SlicedModel
    assemblers = {options.model_fields["kind"].default: each.assembler for options, each in KINDS.items()}
    return assemblers.get(kind, Strategy)
