"""Which exchange with the servers ``train.strategy`` asks for. Runs in a task."""

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from sparkdl.parameters import ParameterClient
from sparkdl.settings.strategies import AsyncEASGDOptions, DecoupledDiLoCoOptions, DownpourOptions, SteppingOptions
from sparkdl.training.asynchronous.decoupled_diloco import DecoupledDiLoCo
from sparkdl.training.asynchronous.downpour import Downpour
from sparkdl.training.asynchronous.exchange import ElasticAveraging, Pace, ServerExchange

__all__ = ["create_exchange"]


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
    common: dict[str, Any] = {"share": 1 / workers, "pace": pace}
    match options:
        case DownpourOptions():
            return Downpour(options, model, client, **common)
        case AsyncEASGDOptions():
            return ElasticAveraging(options, model, client, optimizer(), **common)
        case DecoupledDiLoCoOptions():
            return DecoupledDiLoCo(options, model, client, optimizer(), **common)
    raise TypeError(f"there is no exchange for {type(options).__qualname__}")
