"""How replicas agree: one file per strategy."""

from sparkdl.collectives import Communicator
from sparkdl.settings import AllReduceOptions, Section
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.strategy import Strategy

__all__ = ["AllReduce", "Strategy", "create_strategy"]

STRATEGIES: dict[type[Section], type[Strategy]] = {AllReduceOptions: AllReduce}


def create_strategy(options: Section, collectives: Communicator) -> Strategy:
    """The strategy that ``train.strategy`` asks for, for the ranks of these collectives."""
    return STRATEGIES[type(options)](collectives)
