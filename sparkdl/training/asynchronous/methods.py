"""For each asynchronous ``train.strategy``: how workers exchange with servers, and how servers merge. Runs in tasks."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from sparkdl.parameters import RULES, Outer, ParameterClient, QuasiNewton, Rule
from sparkdl.settings.strategies import (
    AsyncEASGDOptions,
    AsynchronousOptions,
    DecoupledDiLoCoOptions,
    DownpourOptions,
    SandblasterOptions,
    SteppingOptions,
)
from sparkdl.training.asynchronous.decoupled_diloco import DecoupledDiLoCo
from sparkdl.training.asynchronous.downpour import Downpour
from sparkdl.training.asynchronous.exchange import ElasticAveraging, Pace, ServerExchange

__all__ = ["METHODS", "Method", "create_exchange", "rule_of"]


class Method(NamedTuple):
    """An asynchronous kind of ``train.strategy``."""

    rule: Callable[[Any], Callable[[torch.Tensor], Rule]]
    """Makes, from the options, the rule by which servers merge pushes."""
    exchange: Callable[..., ServerExchange] | None
    """Makes a worker's exchange with the servers; None where workers take no steps of their own."""


METHODS: dict[type[AsynchronousOptions], Method] = {
    DownpourOptions: Method(
        lambda options: RULES[options.rule],
        lambda options, model, client, optimizer, **common: Downpour(options, model, client, **common),
    ),
    AsyncEASGDOptions: Method(
        lambda options: RULES["elastic"],
        lambda options, model, client, optimizer, **common: ElasticAveraging(
            options, model, client, optimizer(), **common
        ),
    ),
    DecoupledDiLoCoOptions: Method(
        lambda options: partial(
            Outer,
            rate=options.outer_learning_rate,
            momentum=options.outer_momentum,
            quorum=options.quorum,
            grace=options.grace,
        ),
        lambda options, model, client, optimizer, **common: DecoupledDiLoCo(
            options, model, client, optimizer(), **common
        ),
    ),
    SandblasterOptions: Method(lambda options: partial(QuasiNewton, memory=options.memory), None),
}
"""The methods, by their class of options."""


def create_exchange(
    options: SteppingOptions,
    model: nn.Module,
    client: ParameterClient,
    optimizer: Callable[[], Optimizer],
    *,
    workers: int,
    pace: Pace | None,
) -> ServerExchange:
    """The exchange of this ``train.strategy``; ``pace`` bounds staleness, if it is not None."""
    create = METHODS[type(options)].exchange
    assert create, "workers of this strategy take no steps of their own"
    return create(options, model, client, optimizer, share=1 / workers, pace=pace)


def rule_of(options: AsynchronousOptions) -> Callable[[torch.Tensor], Rule]:
    """Makes the rule by which servers merge the pushes of workers."""
    return METHODS[type(options)].rule(options)
