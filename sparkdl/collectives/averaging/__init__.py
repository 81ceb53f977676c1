"""What travels when ranks take the mean of their tensors, and where it is added up: one file per answer."""

from collections.abc import Callable

import torch

from sparkdl.collectives.averaging.atomo import Atomo
from sparkdl.collectives.averaging.averager import Averager, Exchange, advance, finish
from sparkdl.collectives.averaging.butterfly import Butterfly
from sparkdl.collectives.averaging.casting import Casting
from sparkdl.collectives.averaging.compressed_shards import CompressedShards
from sparkdl.collectives.averaging.demo import DeMo
from sparkdl.collectives.averaging.gathered import Gathered
from sparkdl.collectives.averaging.powersgd import PowerSGD
from sparkdl.collectives.averaging.quantised import QSGD, Int8
from sparkdl.collectives.averaging.ring import Ring
from sparkdl.collectives.averaging.server import Server
from sparkdl.collectives.averaging.sharded_servers import ShardedServers
from sparkdl.collectives.averaging.sign import Sign
from sparkdl.collectives.averaging.topk import DGC
from sparkdl.collectives.averaging.two_levels import TwoLevels
from sparkdl.collectives.communicator import Communicator, Messenger
from sparkdl.settings.averaging import (
    AtomoOptions,
    Averaging,
    BFloat16Options,
    CompressedAveraging,
    Compression,
    DeMoOptions,
    Float16Options,
    Int8Options,
    PowerSGDOptions,
    QSGDOptions,
    SignOptions,
    TopKOptions,
)

__all__ = ["Averager", "Exchange", "Ring", "advance", "create_averager", "finish"]


def create_averager(options: Averaging, communicator: Communicator) -> Averager:
    """What these options ask for, among the ranks of a communicator. Runs on ranks, on all of them together."""
    compression = options.compression if isinstance(options, CompressedAveraging) else None
    if options.topology == "ring":
        return _compressing(compression, Ring(communicator), communicator)
    if not isinstance(communicator, Messenger):
        raise TypeError(
            f"topology {options.topology} sends messages between pairs of ranks: it needs the backend torch"
        )
    if options.topology == "two_levels":
        return TwoLevels(
            communicator, communicator.hosts(), lambda servers: _compressing(compression, Ring(servers), servers)
        )
    if options.topology == "sharded_servers" and compression and compression.by_value:
        return CompressedShards(communicator, _gathered(compression, communicator))
    topologies: dict[str, Callable[[Messenger], Averager]] = {
        "butterfly": Butterfly,
        "server": Server,
        "sharded_servers": ShardedServers,
    }
    return _compressing(compression, topologies[options.topology](communicator), communicator)


def _compressing(compression: Compression | None, plain: Averager, communicator: Communicator) -> Averager:
    """The averager that sends less; ``plain`` adds up what can be added up on the way."""
    match compression:
        case None:
            return plain
        case Float16Options():
            return Casting(plain, dtype=torch.float16)
        case BFloat16Options():
            return Casting(plain, dtype=torch.bfloat16)
        case PowerSGDOptions(rank=rank):
            return PowerSGD(plain, rank=rank)
        case AtomoOptions(atoms=atoms):
            return Atomo(communicator, atoms=atoms)
    return _gathered(compression, communicator)


def _gathered(compression: Compression, communicator: Communicator) -> Gathered:
    match compression:
        case Int8Options():
            return Int8(communicator)
        case QSGDOptions(bits=bits):
            return QSGD(communicator, bits=bits)
        case TopKOptions(ratio=ratio, momentum=momentum, warmup_epochs=warmup_epochs):
            return DGC(communicator, ratio=ratio, momentum=momentum, warmup_epochs=warmup_epochs)
        case SignOptions():
            return Sign(communicator)
        case DeMoOptions(coefficients=coefficients):
            return DeMo(communicator, coefficients=coefficients)
    raise TypeError(f"there is no averager for {type(compression).__qualname__}")
