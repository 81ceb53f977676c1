"""Finds the front of a network, which the ranks of a replica compute for different rows. Runs on the driver.

Convolutions have few weights and many activations, wide layers many weights and few activations: data parallelism suits
the former, and tensor parallelism the latter (Project Adam: Chilimbi et al., OSDI 2014; Krizhevsky, 2014, arXiv
1404.5997, scheme (a)). Narrow layers over long sequences are like convolutions.
"""

import operator
from collections.abc import Collection, Mapping

from torch import fx

from sparkdl.layouts.cut_dimensions import WholeError, argument, operation, shape_of, spread

__all__ = ["find_front"]

CONVOLUTIONS = {f"{kind}{size}d" for kind in ("conv", "conv_transpose") for size in (1, 2, 3)}
POOLS = {f"{kind}_pool{size}d" for kind in ("avg", "max", "adaptive_avg", "adaptive_max") for size in (1, 2, 3)}
PLACES_OF_DIMS = {
    **dict.fromkeys(("amax", "log_softmax", "max", "mean", "select", "softmax", "squeeze", "sum"), 1),
    **dict.fromkeys(("chunk", "split"), 2),
}
"""Operations that combine or split values along dimensions, with the position of the argument that names these."""


def find_front(
    columns: Collection[fx.Node],
    inputs: Collection[fx.Node],
    weights: Mapping[fx.Node, str],
    cut: Collection[fx.Node],
    *,
    of_linear_layers: bool = False,
) -> tuple[str, ...]:
    """The names of the parameters before the first block, if that part can be computed row by row; else none.

    It can, if all inputs reach the rest of the network only through the ``columns`` of this block, no layer before it
    is ``cut``, and no row depends on another row or on random numbers. Without convolutions it does not pay, unless it
    may be ``of_linear_layers``. ``weights`` has the placeholders of all parameters.
    """
    front = _leading_to(columns)
    rows = {shape_of(each)[0] for each in inputs if shape_of(each)}
    paying = CONVOLUTIONS | ({"linear"} if of_linear_layers else set())
    if len(rows) != 1 or not front.isdisjoint(cut) or not any(operation(node) in paying for node in front):
        return ()
    graph = next(iter(columns)).graph
    of_rows: dict[fx.Node, int] = dict.fromkeys(inputs, 0)
    for node in graph.nodes:
        if node in front and any(each in of_rows for each in node.all_input_nodes):
            if not _by_row(node, of_rows) or any(shape[:1] != (*rows,) for shape in _shapes(node)):
                return ()
            of_rows[node] = 0
    learned = [node for node in (*inputs, *front) if node in weights or node in inputs or node.op == "call_function"]
    elsewhere = {user for node in learned for user in node.users if not _is_nothing(user)} - front
    if not elsewhere <= set(columns) or any(node.args[0] not in of_rows for node in columns):
        return ()
    return tuple(weights[node] for node in graph.nodes if node in front and node in weights)


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


def _shapes(node: fx.Node) -> list[tuple[int, ...]]:
    value = node.meta["val"]
    return [tuple(each.shape) for each in (value if isinstance(value, tuple | list) else (value,))]


def _by_row(node: fx.Node, of_rows: dict[fx.Node, int]) -> bool:
    """Whether each row of a result (along dimension 0) depends only on the same row of its arguments."""
    name = operation(node)
    given = [each for each in node.all_input_nodes if each in of_rows]
    if node.target is operator.getitem:
        return True
    source = node.args[1] if name == "embedding" else node.args[0]
    alone = given == [source]
    if name in CONVOLUTIONS:  # without a batch, dimension 0 has the channels
        return alone and len(shape_of(given[0])) == len(shape_of(node.all_input_nodes[1]))
    if name in POOLS or name in ("embedding", "group_norm"):
        return alone
    if name == "linear":
        return alone and len(shape_of(given[0])) > 1
    if name in ("layer_norm", "pad"):
        lengths = node.args[1]
        reached = len(lengths) if isinstance(lengths, list | tuple) else 1
        return alone and (reached if name == "layer_norm" else reached // 2) < len(shape_of(given[0]))
    if name in PLACES_OF_DIMS:
        return alone and _leaves_rows(argument(node, PLACES_OF_DIMS[name], "dim"), len(shape_of(given[0])))
    try:
        return spread(node, of_rows, name) == 0
    except WholeError:
        return False


def _leaves_rows(dims: object, length: int) -> bool:
    """Whether dimensions are given, and the first dimension is not among them."""
    places = dims if isinstance(dims, list | tuple) else (dims,)
    return bool(places) and all(isinstance(each, int) and each % length for each in places)
