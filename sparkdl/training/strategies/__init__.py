"""How replicas agree: one file per strategy."""

from sparkdl.collectives import Communicator
from sparkdl.training.strategies.allreduce import AllReduce
from sparkdl.training.strategies.strategy import Strategy

__all__ = ["AllReduce", "Strategy", "create_strategy"]

STRATEGIES: dict[str, type[Strategy]] = {"allreduce": AllReduce}


def create_strategy(name: str, collectives: Communicator) -> Strategy:
    """The strategy that ``train.strategy`` names, for the ranks of these collectives."""
    return STRATEGIES[name](collectives)
