"""Finds the front of a network, which the ranks of a replica compute for different rows. Runs on the driver.

Convolutions have few weights and many activations, wide layers many weights and few activations: data parallelism suits
the former, and tensor parallelism the latter (Project Adam: Chilimbi et al., OSDI 2014; Krizhevsky, 2014, arXiv
1404.5997, scheme (a)). Narrow layers over long sequences are like convolutions.
"""

import operator
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx, nn

from sparkdl.inputs.tensors import Inputs, answer, count_rows, sliced
from sparkdl.layouts.cut_dimensions import operation, shape_of
from sparkdl.models import in_mode

__all__ = ["computes_by_row", "find_front"]

CONVOLUTIONS = {f"{kind}{size}d" for kind in ("conv", "conv_transpose") for size in (1, 2, 3)}
TOLERANCE = 1e-4
"""Allowed difference of values, relative to the largest: other numbers of rows are rounded differently."""


def find_front(
    columns: Collection[fx.Node],
    inputs: Collection[fx.Node],
    weights: Mapping[fx.Node, str],
    cut: Collection[fx.Node],
    *,
    of_linear_layers: bool = False,
) -> tuple[str, ...]:
    """The names of the parameters before the first block, if the rest of the network needs nothing else of that part.

    It does, if any input reaches the rest otherwise than through the ``columns`` of this block, or a layer before it is
    ``cut``. Without convolutions it does not pay, unless it may be ``of_linear_layers``. ``weights`` has the
    placeholders of all parameters. Whether the part can be computed row by row, :func:`computes_by_row` finds.
    """
    front = _leading_to(columns)
    rows = {shape_of(each)[0] for each in inputs if shape_of(each)}
    paying = CONVOLUTIONS | ({"linear"} if of_linear_layers else set())
    if len(rows) != 1 or not front.isdisjoint(cut) or not any(operation(node) in paying for node in front):
        return ()
    learned = [node for node in (*inputs, *front) if node in weights or node in inputs or node.op == "call_function"]
    elsewhere = {user for node in learned for user in node.users if not _is_nothing(user)} - front
    if not elsewhere <= set(columns):
        return ()
    graph = next(iter(columns)).graph
    return tuple(weights[node] for node in graph.nodes if node in front and node in weights)


def computes_by_row(model: nn.Module, rows: Inputs, layer: str) -> bool:
    """Whether each row's values that enter a layer are the same without other rows, as they are computed in training.

    They are not after batch normalisation or dropout. A network that counts rows, or keeps means over them, does not
    compute by row either. ``rows`` should differ from each other.
    """
    singles = (sliced(rows, slice(place, place + 1)) for place in range(count_rows(rows)))
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        with in_mode(model, training=True), torch.no_grad(), torch.random.fork_rng(devices=[]):
            together = _entering(model, rows, layer)
            alone = torch.cat([_entering(model, row, layer) for row in singles])
        kept = all(torch.equal(buffer, before) for buffer, before in buffers)
    except Exception:
        return False  # its code needs several rows
    finally:
        for buffer, before in buffers:
            buffer.detach().copy_(before)
    close = together.shape == alone.shape and (together - alone).abs().max() <= TOLERANCE * together.abs().max()
    return kept and bool(close)


class _ReachedError(Exception):
    """A layer was reached, and the rest of a pass is not needed."""


def _entering(model: nn.Module, rows: Inputs, layer: str) -> torch.Tensor:
    """The values that enter a layer."""
    found: list[torch.Tensor] = []

    def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        found.append(next(iter((*args, *kwargs.values()))))
        raise _ReachedError

    hook = model.get_submodule(layer).register_forward_pre_hook(stop, with_kwargs=True)
    try:
        answer(model, rows)
    except _ReachedError:
        pass
    finally:
        hook.remove()
    (values,) = found
    return values.clone()


def _leading_to(columns: Collection[fx.Node]) -> set[fx.Node]:
    """All operations from which the inputs of these layers are computed."""
    found = set[fx.Node]()
    stack = [node.args[0] for node in columns]
    while stack:
        node = stack.pop()
        if isinstance(node, fx.Node) and node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found


def _is_nothing(node: fx.Node) -> bool:
    """Whether an operation computes nothing: a type check, or a pool's second result, which is unused."""
    return operation(node).startswith("_assert") or (node.target is operator.getitem and not node.users)
