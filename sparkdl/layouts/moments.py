"""An optimizer's state by names of parameters, because indices of parameters mean nothing in another layout."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sparkdl.layouts.regions import OF, ModelPart, Regions, base_name, fill, is_moment, moment_name, room_for

__all__ = ["fill_with_moments", "moments_by_name", "names_in", "put_moments", "with_room"]


def moments_by_name(
    model: nn.Module, optimizer: Optimizer, state: Mapping[int, Any] | None = None, names: Sequence[str] = ()
) -> dict[str, Any]:
    """Moments and plain numbers by :func:`~sparkdl.layouts.regions.moment_name`, not copied. Runs on ranks.

    ``state`` is from the ``state_dict`` of another optimizer; by default, the optimizer's own. ``names`` are those of
    its parameters (:func:`names_in`); by default, it has the same ones.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if state is None:
        state = {number: optimizer.state.get(parameter, {}) for number, parameter in enumerate(parameters)}
    names = names or names_in(optimizer, model)
    return {moment_name(names[number], kind): value for number, own in state.items() for kind, value in own.items()}


def names_in(optimizer: Optimizer, model: nn.Module) -> list[str]:
    """The names of an optimizer's parameters, in the order in which its ``state_dict`` numbers them. Runs on ranks."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for group in optimizer.param_groups for parameter in group["params"]]


def put_moments(
    model: nn.Module,
    optimizer: Optimizer,
    moments: Mapping[str, Any],
    make: Callable[[nn.Parameter, Any], Any] = lambda parameter, value: value,
) -> None:
    """Restore an optimizer's moments by name. ``make`` converts a parameter's value into what the optimizer keeps."""
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
    """Yield the same pieces, after allocating in ``parts`` the moments of ``own`` parameters that a piece has.

    Moments lie at the ``regions`` of their parameters; ``shapes`` are those of parameters in the whole model. Values
    of another shape than their parameter, such as the number of steps, are equal in all pieces, and go to ``others``.
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
    """Fill as :func:`~sparkdl.layouts.regions.fill` does; returns its result, and the moments of these weights."""
    parts, others = dict(weights), dict[str, Any]()
    rest = fill(parts, regions, shapes, with_room(pieces, parts, others, regions, shapes, weights))
    return rest, {name: value for name, value in parts.items() if name not in weights} | others
