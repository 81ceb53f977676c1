"""How replicas agree: one file per strategy."""

from sparkdl.collectives import Communicator, create_averager
from sparkdl.settings.averaging import Averaging
from sparkdl.settings.strategies import (
    AllReduceOptions,
    DeepSparkOptions,
    DiLoCoOptions,
    EASGDOptions,
    LocalSGDOptions,
    PostLocalSGDOptions,
    SparkNetOptions,
)
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.diloco import DiLoCo
from sparkdl.training.strategies.easgd import EASGD
from sparkdl.training.strategies.local_sgd import LocalSGD
from sparkdl.training.strategies.post_local_sgd import PostLocalSGD
from sparkdl.training.strategies.strategy import Strategy

__all__ = ["Strategy", "create_strategy"]


def create_strategy(options: Averaging, communicator: Communicator) -> Strategy:
    """The strategy that ``train.strategy`` asks for, for the ranks that each have a replica. All call it together."""
    averager = create_averager(options, communicator)
    match options:
        case AllReduceOptions():
            return AllReduce(communicator, averager)
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
    raise TypeError(f"there is no strategy for {type(options).__qualname__}")
