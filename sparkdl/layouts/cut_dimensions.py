"""Tracks the dimension along which values are cut through the operations of a graph. Runs on the driver."""

from collections.abc import Callable
from math import prod

import torch
from torch import fx

__all__ = ["WholeError", "operation", "shape_of", "spread"]

BY_ELEMENT = {
    *("abs", "add", "alias", "celu", "clone", "contiguous", "detach", "div", "dropout", "elu", "exp", "gelu"),
    *("hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "mul", "neg", "pow", "relu", "relu6", "rsub"),
    *("selu", "sigmoid", "silu", "softplus", "sub", "tanh", "to", "_to_copy"),
}
"""Operations that compute each element of their result from the elements at the same position."""


class WholeError(Exception):
    """The reason why a block cannot be cut."""


def operation(node: fx.Node) -> str:
    """The name of an ATen operation; in-place operations without their underscore."""
    if isinstance(node.target, torch._ops.OpOverload):
        name = node.target._schema.name.removeprefix("aten::")
        return name if name.startswith("_") else name.removesuffix("_")
    return ""


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape of an operation's result."""
    return tuple(node.meta["val"].shape)


def spread(node: fx.Node, dims: dict[fx.Node, int], row: str) -> int:
    """The dimension along which a result is cut, from those of its arguments. Raises :class:`WholeError`."""
    name = operation(node)
    rules: dict[str, Callable[[fx.Node, dict[fx.Node, int]], int | None]] = {
        **dict.fromkeys(BY_ELEMENT, _by_element),
        **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten"), _reshaped),
        **dict.fromkeys(("transpose", "permute"), _moved),
        **dict.fromkeys(("unsqueeze", "expand"), _widened),
        **dict.fromkeys(("slice", "cat"), _elsewhere),
        "scaled_dot_product_attention": _by_head,
    }
    if name == "dropout" and node.args[1] and node.args[2]:
        raise WholeError(f"there is dropout before {row!r}, whose mask ranks would have to share; set it to 0")
    if name == "scaled_dot_product_attention" and _argument(node, 4, "dropout_p"):
        raise WholeError(f"attention before {row!r} has dropout, whose mask ranks would have to share")
    dim = rules[name](node, dims) if name in rules else None
    if dim is None:
        raise WholeError(f"{name or node.name} before {row!r} needs all values at once")
    return dim


def _argument(node: fx.Node, place: int, name: str) -> object:
    """An argument of an operation, by position or name; None if it is not given."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def _by_element(node: fx.Node, dims: dict[fx.Node, int]) -> int | None:
    """Elementwise: cut as its arguments; an argument that is not cut is broadcast along the cut dimension."""
    length = len(shape_of(node))
    found = {dims[each] - len(shape_of(each)) for each in node.all_input_nodes if each in dims}
    (behind,) = found if len(found) == 1 else (0,)
    for each in node.all_input_nodes:
        if each not in dims and len(shape_of(each)) >= -behind and shape_of(each)[behind] != 1:
            return None
    return length + behind if behind else None


def _reshaped(node: fx.Node, dims: dict[fx.Node, int]) -> int | None:
    """Reshaped: the dimension that begins where the cut one begins, so that each part stays in one piece."""
    (source,) = node.all_input_nodes
    before, after = shape_of(source)[: dims[source]], shape_of(node)
    found = [dim for dim, size in enumerate(after) if size > 1 and prod(after[:dim]) == prod(before)]
    if not found:
        return None
    given, size = shape_of(source)[dims[source]], after[found[0]]
    return found[0] if given % size == 0 or size % given == 0 else None


def _moved(node: fx.Node, dims: dict[fx.Node, int]) -> int | None:
    (source,) = node.all_input_nodes
    order = list(range(len(shape_of(source))))
    if operation(node) == "permute":
        order = [int(dim) % len(order) for dim in node.args[1]]  # type: ignore[union-attr, arg-type]
    else:
        one, other = (int(dim) % len(order) for dim in node.args[1:3])  # type: ignore[arg-type]
        order[one], order[other] = order[other], order[one]
    return order.index(dims[source])


def _widened(node: fx.Node, dims: dict[fx.Node, int]) -> int | None:
    (source,) = node.all_input_nodes
    dim, length = dims[source], len(shape_of(node))
    if operation(node) == "expand":
        return dim + length - len(shape_of(source))
    place = int(node.args[1]) % length  # type: ignore[arg-type]
    return dim + (place <= dim)


def _elsewhere(node: fx.Node, dims: dict[fx.Node, int]) -> int | None:
    """Split or concatenated along another dimension than the one that is cut."""
    filled = [each for each in node.all_input_nodes if prod(shape_of(each))]  # a cache of earlier positions is empty
    found = {dims.get(each) for each in filled}
    place = int(_argument(node, 1, "dim") or 0) % len(shape_of(node))  # type: ignore[call-overload]
    if len(found) != 1 or (dim := found.pop()) is None:
        return None
    whole = operation(node) == "slice" and shape_of(node)[dim] == shape_of(filled[0])[dim]
    return dim if place != dim or whole else None


def _by_head(node: fx.Node, dims: dict[fx.Node, int]) -> int | None:
    """Attention: cut by heads, the dimension before positions and features; a mask that is not cut fits all heads."""
    values, others = node.all_input_nodes[:3], node.all_input_nodes[3:]
    length = len(shape_of(node))
    if any(dims.get(each) != length - 3 for each in values):
        return None
    for mask in others:
        if mask in dims or (len(shape_of(mask)) >= 3 and shape_of(mask)[-3] != 1):
            return None
    return length - 3
