"""What an optimizer keeps for each parameter, by the names of parameters: numbers in a list say nothing elsewhere."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sparkdl.layouts.regions import OF, ModelPart, Regions, base_name, fill, is_moment, moment_name, room_for

__all__ = ["fill_with_moments", "moments_by_name", "put_moments", "with_room"]


def moments_by_name(model: nn.Module, optimizer: Optimizer, state: Mapping[int, Any] | None = None) -> dict[str, Any]:
    """Moments and plain numbers by :func:`~sparkdl.layouts.regions.moment_name`, the very tensors. Runs on ranks.

    ``state`` is that of another optimizer over the same network, as its ``state_dict`` has it; by default its own.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    found = {}
    for number, parameter in enumerate(parameters):
        of_parameter = optimizer.state.get(parameter, {}) if state is None else state.get(number, {})
        for kind, value in of_parameter.items():
            found[moment_name(names[id(parameter)], kind)] = value
    return found


def put_moments(
    model: nn.Module,
    optimizer: Optimizer,
    moments: Mapping[str, Any],
    make: Callable[[nn.Parameter, Any], Any] = lambda parameter, value: value,
) -> None:
    """Let an optimizer go on from moments by name. ``make`` makes what it keeps of a parameter and what is given."""
    parameters = dict(model.named_parameters())
    for name, value in moments.items():
        base, _, kind = name.partition(OF)
        parameter = parameters[base]
        own = value.clone() if isinstance(value, torch.Tensor) else value
        optimizer.state[parameter][kind] = make(parameter, own)


def with_room(
    pieces: Iterable[ModelPart],
    parts: dict[str, torch.Tensor],
    others: dict[str, Any],
    regions: Regions,
    shapes: Mapping[str, tuple[int, ...]],
    own: Collection[str],
) -> Iterator[ModelPart]:
    """The same pieces, each as soon as ``parts`` has room for what is in it of ``own`` parameters.

    That is for their moments, at these regions; ``shapes`` are those of parameters in the whole model. What does not
    lie as its parameter, such as the number of steps, is the same in all pieces that have it, and goes to ``others``.
    """
    for theirs, piece in pieces:
        for name, value in piece.items():
            base = base_name(name)
            if base not in own or name in parts:
                continue
            if not is_moment(name) or _lies_as(value, piece[base]):
                lies = {name: regions[base]} if base in regions else {}
                parts |= room_for(lies, {name: shapes[base]}, {name: value})
            else:
                others[name] = value
        yield theirs, piece
        del piece, value  # before the next one is read


def _lies_as(value: Any, parameter: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.ndim) and value.shape == parameter.shape


def fill_with_moments(
    weights: Mapping[str, torch.Tensor],
    regions: Regions,
    shapes: Mapping[str, tuple[int, ...]],
    pieces: Iterable[ModelPart],
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Do what :func:`~sparkdl.layouts.regions.fill` does; return what it returns, and the moments of these weights."""
    parts, others = dict(weights), dict[str, Any]()
    rest = fill(parts, regions, shapes, with_room(pieces, parts, others, regions, shapes, weights))
    return rest, {name: value for name, value in parts.items() if name not in weights} | others
