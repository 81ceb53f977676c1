"""How ranks average tensors: compressions of the messages, and topologies of the sum, one file each."""

from collections.abc import Callable
from typing import Any

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

__all__ = ["ADDED_UP", "GATHERED", "TOPOLOGIES", "Averager", "Exchange", "Ring", "advance", "create_averager", "finish"]

TOPOLOGIES: dict[str, Callable[[Messenger], Averager]] = {
    "butterfly": Butterfly,
    "server": Server,
    "sharded_servers": ShardedServers,
}
"""Topologies of messages between pairs of ranks, except ``two_levels``, which also has a ring."""


def create_averager(options: Averaging, communicator: Communicator) -> Averager:
    """Create the averager of these options for the ranks of a communicator. Runs on all ranks together."""
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
    return _compressing(compression, TOPOLOGIES[options.topology](communicator), communicator)


def _compressing(compression: Compression | None, plain: Averager, communicator: Communicator) -> Averager:
    """The averager with compression; ``plain`` averages those messages that can be added up."""
    if compression is None:
        return plain
    if create := ADDED_UP.get(type(compression)):
        return create(compression, plain, communicator)
    return _gathered(compression, communicator)


def _gathered(compression: Compression, communicator: Communicator) -> Gathered:
    return GATHERED[type(compression)](compression, communicator)


ADDED_UP: dict[type[Compression], Callable[[Any, Averager, Communicator], Averager]] = {
    Float16Options: lambda _, plain, __: Casting(plain, dtype=torch.float16),
    BFloat16Options: lambda _, plain, __: Casting(plain, dtype=torch.bfloat16),
    PowerSGDOptions: lambda options, plain, _: PowerSGD(plain, rank=options.rank),
    AtomoOptions: lambda options, _, communicator: Atomo(communicator, atoms=options.atoms),
}
"""Compressions whose messages can be added up, by their class of options."""
GATHERED: dict[type[Compression], Callable[[Any, Communicator], Gathered]] = {
    Int8Options: lambda _, communicator: Int8(communicator),
    QSGDOptions: lambda options, communicator: QSGD(communicator, bits=options.bits),
    TopKOptions: lambda options, communicator: DGC(
        communicator, ratio=options.ratio, momentum=options.momentum, warmup_epochs=options.warmup_epochs
    ),
    SignOptions: lambda _, communicator: Sign(communicator),
    DeMoOptions: lambda options, communicator: DeMo(communicator, coefficients=options.coefficients),
}
"""Compressions in which each rank receives the messages of all ranks, by their class of options."""
