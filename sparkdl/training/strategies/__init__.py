"""How replicas agree: one file per strategy."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch

from sparkdl.collectives import create_averager
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

__all__ = ["Strategy", "create_strategy", "strategy_of"]


def create_strategy(settings: Train, groups: Groups, part: SharedPart | None = None) -> Strategy:
    """The strategy that ``train.strategy`` asks for, for the ranks that each have a replica. All call it together.

    Where ranks have a ``part`` of a network, it is all-reduce.
    """
    options = settings.strategy
    if not isinstance(options, Averaging):
        raise TypeError(f"{type(options).__qualname__} is for workers that have servers, and not for ranks in lockstep")
    communicator = groups.data
    averager = create_averager(options, communicator)
    if isinstance(part, ExpertParallel):
        return ExpertAllReduce(communicator, averager, part, create_averager(options, part.alike))
    if part:
        return PartAllReduce(communicator, averager, part, everyone=groups.world)
    match options:
        case AllReduceOptions(shard="optimizer" | "all" as shard):
            from sparkdl.training.strategies.sharded_allreduce import ShardedAllReduce  # PyTorch's DTensor takes 0.5 s

            return ShardedAllReduce(communicator, averager, shard=shard)
        case AllReduceOptions(measure_noise=measure_noise):
            return AllReduce(communicator, averager, measure_noise=measure_noise)
        case LocalSGDOptions(period=period, momentum=momentum):
            return LocalSGD(communicator, averager, period=period, average_momentum=momentum == "averaged")
        case SparkNetOptions(period=period):
            return LocalSGD(communicator, averager, period=period)
        case PostLocalSGDOptions():
            return PostLocalSGD(options, communicator, averager)
        case DiLoCoOptions():
            return DiLoCo(options, communicator, averager)
        case EASGDOptions() | DeepSparkOptions():
            return EASGD(options, communicator, averager)
        case HogwildOptions():
            return Hogwild(options, communicator)
        case ISTOptions(sharded=True):
            return ShardedIST(options, communicator, averager, seed=settings.seed)
        case ISTOptions():
            return IST(options, communicator, averager, seed=settings.seed, epochs=settings.epochs)
        case ResISTOptions():
            return ResIST(options, communicator, averager, seed=settings.seed, epochs=settings.epochs)
    raise TypeError(f"there is no strategy for {type(options).__qualname__}")


class Assembler(Protocol):
    """Who knows what the shards of a checkpoint stand for; see :meth:`Strategy.assemble`."""

    def assemble(self, state: Mapping[str, Any], replicas: Iterable[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
        """The weights of the consensus."""


def strategy_of(kind: str) -> Assembler:
    """The class that assembles the consensus in a checkpoint of this kind of strategy."""
    classes: dict[str, Assembler] = {"easgd": EASGD, "deepspark": EASGD, "ist": IST, "resist": ResIST}
    classes |= dict.fromkeys(["downpour", "async_easgd", "decoupled_diloco", "sandblaster"], SlicedModel)
    return classes.get(kind, Strategy)
