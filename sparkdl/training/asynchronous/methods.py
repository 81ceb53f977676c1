"""How workers exchange with servers for each asynchronous ``train.strategy``, and how servers merge. Runs in tasks."""

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
    """A kind of ``train.strategy`` without lockstep."""

    rule: Callable[[Any], Callable[[torch.Tensor], Rule]]
    """How servers merge pushes, from its options."""
    exchange: Callable[..., ServerExchange] | None
    """What a worker sends and fetches around its steps; None where workers take none."""


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
"""By their options."""


def create_exchange(
    options: SteppingOptions,
    model: nn.Module,
    client: ParameterClient,
    optimizer: Callable[[], Optimizer],
    *,
    workers: int,
    pace: Pace | None,
) -> ServerExchange:
    """What ``train.strategy`` asks for; ``pace`` is that of the others, if staleness is bounded."""
    create = METHODS[type(options)].exchange
    assert create, "workers of this strategy take no steps of their own"
    return create(options, model, client, optimizer, share=1 / workers, pace=pace)


def rule_of(options: AsynchronousOptions) -> Callable[[torch.Tensor], Rule]:
    """How servers merge what workers push."""
    return METHODS[type(options)].rule(options)
