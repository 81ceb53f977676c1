"""Which layers of a network can be cut for tensor parallelism, found in its graph. Runs on the driver.

A block is cut by columns, then by rows (Megatron-LM: Shoeybi et al., 2019, arXiv 1909.08053): linear layers that are
given whole values and of which each rank computes some outputs, what happens to each of these by itself (activations,
the heads of attention), and a linear layer that is given these outputs and whose results are added up.
"""

from collections.abc import Callable
from math import gcd, prod
from typing import NamedTuple

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind

from sparkdl.errors import ModelError
from sparkdl.inputs.tensors import Inputs
from sparkdl.models import LOGITS, OnlyTensors, in_mode

__all__ = ["CutBlock", "TensorPlan", "find_plan"]

LARGE_TABLE = 1 << 20
"""Numbers of an embedding that is worth an exchange of its own."""
BY_ELEMENT = {
    *("abs", "add", "alias", "celu", "clone", "contiguous", "detach", "div", "dropout", "elu", "exp", "gelu"),
    *("hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "mul", "neg", "pow", "relu", "relu6", "rsub"),
    *("selu", "sigmoid", "silu", "softplus", "sub", "tanh", "to", "_to_copy"),
}
"""Operations that compute each element of their result from the elements of the same place."""


class CutBlock(NamedTuple):
    """Linear layers that are cut together, by their names."""

    columns: tuple[str, ...]
    """Of which each rank has some outputs."""
    row: str
    """Which takes these."""
    units: int
    """How many units are dealt to the ranks: neurons, or heads of attention."""


class TensorPlan(NamedTuple):
    """How the ranks of one replica share a network."""

    ranks: int
    blocks: tuple[CutBlock, ...]
    embeddings: tuple[str, ...] = ()
    """Whose rows are dealt."""


class _WholeError(Exception):
    """Why a block is not cut."""


def find_plan(model: nn.Module, rows: Inputs, ranks: int) -> TensorPlan:
    """The plan for so many ranks, from the graph of the network in training for some rows.

    Raises :class:`ModelError` for a network that cannot be traced, and for one that has nothing to cut.
    """
    graph, weights = _traced(model, rows)
    layers = {name: module for name, module in model.named_modules() if type(module) in (nn.Linear, nn.Embedding)}
    counts: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        counts[id(parameter)] = counts.get(id(parameter), 0) + 1
    named: dict[fx.Node, str] = {}
    for node in graph.nodes:
        name = _layer_of(node, weights)
        if name in layers and counts[id(layers[name].weight)] == 1 and len(_weight(node).users) == 1:
            named[node] = name
    linear = {node: name for node, name in named.items() if isinstance(layers[name], nn.Linear)}
    blocks: list[CutBlock] = []
    taken: set[str] = set()
    reasons = []
    for row in linear:
        try:
            block = _block_before(row, linear)
            if block.units < ranks:
                raise _WholeError(f"{block.row!r} has {block.units} units before it, fewer than {ranks} ranks")
        except _WholeError as reason:
            reasons.append(str(reason))
            continue
        if taken.isdisjoint({*block.columns, block.row}):
            blocks.append(block)
            taken |= {*block.columns, block.row}
    tables = [name for node, name in named.items() if node not in linear and _is_large_table(layers[name], ranks)]
    if not blocks and not tables:
        raise ModelError(
            "cluster.layout.tensor: the network has nothing to cut, such as two torch.nn.Linear with an activation"
            f" between them, or attention; set it to 1. Found: {'; '.join(reasons) or 'no torch.nn.Linear'}"
        )
    return TensorPlan(ranks, tuple(blocks), tuple(tables))


def _traced(model: nn.Module, rows: Inputs) -> tuple[fx.Graph, dict[str, str]]:
    """The graph of ATen operations in training, and by its placeholders the names of weights."""
    names, given = (list(rows), tuple(rows.values())) if isinstance(rows, dict) else (None, (rows,))
    with in_mode(model, training=True), torch.no_grad():
        try:
            program = torch.export.export(OnlyTensors(model, names, (LOGITS,)), given)
        except Exception as error:
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
            raise ModelError(
                "cluster.layout.tensor looks for layers to cut in the network's graph, which cannot be traced:"
                f" {reason}. Look in its forward() for decisions that depend on values, or set it to 1"
            ) from error
    specs = program.graph_signature.input_specs
    found = {spec.arg.name: str(spec.target) for spec in specs if spec.kind is InputKind.PARAMETER}
    return program.graph, {place: name.removeprefix("network.") for place, name in found.items()}


def _operation(node: fx.Node) -> str:
    """The name of an ATen operation, of one that overwrites its argument without the underscore."""
    if isinstance(node.target, torch._ops.OpOverload):
        name = node.target._schema.name.removeprefix("aten::")
        return name if name.startswith("_") else name.removesuffix("_")
    return ""


def _weight(node: fx.Node) -> fx.Node:
    """The first argument of an embedding, the second of a linear layer."""
    weight = node.args[0 if _operation(node) == "embedding" else 1]
    assert isinstance(weight, fx.Node)
    return weight


def _layer_of(node: fx.Node, weights: dict[str, str]) -> str:
    """The name of the linear layer or embedding that computes this; empty for anything else."""
    if _operation(node) not in ("linear", "embedding"):
        return ""
    return weights.get(_weight(node).name, "").removesuffix(".weight")


def _is_large_table(layer: nn.Module, ranks: int) -> bool:
    assert isinstance(layer, nn.Embedding)
    plain = not layer.sparse and layer.max_norm is None
    return plain and layer.weight.numel() >= LARGE_TABLE and layer.num_embeddings >= ranks


def _block_before(row: fx.Node, linear: dict[fx.Node, str]) -> CutBlock:
    """The block that ends in a linear layer. Raises :class:`_WholeError`."""
    before, columns, stack = set[fx.Node](), [], [row.args[0]]
    while stack:
        node = stack.pop()
        if not isinstance(node, fx.Node) or node in before:
            continue
        before.add(node)
        if node in linear:
            columns.append(node)
        else:
            stack += node.all_input_nodes
    columns = [node for node in row.graph.nodes if node in set(columns)]
    dims: dict[fx.Node, int] = {node: len(_shape(node)) - 1 for node in columns}
    name = linear[row]
    if not columns:
        raise _WholeError(f"no layer that can be cut leads to {name!r}")
    for node in row.graph.nodes:
        if node in before and node not in dims and any(each in dims for each in node.all_input_nodes):
            dims[node] = _spread(node, dims, name)
    last = row.args[0]
    if not isinstance(last, fx.Node) or dims.get(last) != len(_shape(last)) - 1:
        raise _WholeError(
            f"the input of {name!r} is not split along the dimension by which the layers before it are cut"
        )
    users = [user for node in dims for user in node.users if not _operation(user).startswith("_assert")]
    if stray := [user for user in users if user not in dims and user is not row]:
        raise _WholeError(f"the input of {name!r} is also used by {_operation(stray[0]) or stray[0].name}")
    units = gcd(*(_shape(node)[dim] for node, dim in dims.items()))
    return CutBlock(tuple(linear[node] for node in columns), name, units)


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _spread(node: fx.Node, dims: dict[fx.Node, int], row: str) -> int:
    """Along which dimension a result is cut when its arguments are. Raises :class:`_WholeError`."""
    name = _operation(node)
    rules: dict[str, Callable[[fx.Node, dict[fx.Node, int]], int | None]] = {
        **dict.fromkeys(BY_ELEMENT, _by_element),
        **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten", "unflatten"), _reshaped),
        **dict.fromkeys(("transpose", "permute"), _moved),
        **dict.fromkeys(("unsqueeze", "expand"), _widened),
        **dict.fromkeys(("slice", "cat"), _elsewhere),
        "scaled_dot_product_attention": _by_head,
    }
    if name == "dropout" and node.args[1] and node.args[2]:
        raise _WholeError(f"there is dropout before {row!r}, whose mask ranks would have to share; set it to 0")
    if name == "scaled_dot_product_attention" and _argument(node, 4, "dropout_p"):
        raise _WholeError(f"attention before {row!r} has dropout, whose mask ranks would have to share")
    dim = rules[name](node, dims) if name in rules else None
    if dim is None:
        raise _WholeError(f"{name or node.name} before {row!r} needs all values at once")
    return dim


def _argument(node: fx.Node, place: int, name: str) -> object:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def _by_element(node: fx.Node, dims: dict[fx.Node, int]) -> int | None:
    """Cut as its arguments; one that is whole is the same for all that are cut apart."""
    length = len(_shape(node))
    found = {dims[each] - len(_shape(each)) for each in node.all_input_nodes if each in dims}
    (behind,) = found if len(found) == 1 else (0,)
    for each in node.all_input_nodes:
        if each not in dims and len(_shape(each)) >= -behind and _shape(each)[behind] != 1:
            return None
    return length + behind if behind else None


def _reshaped(node: fx.Node, dims: dict[fx.Node, int]) -> int | None:
    """The dimension that begins where the one that is cut begins: pieces of it stay together in either."""
    (source,) = node.all_input_nodes
    before, after = _shape(source)[: dims[source]], _shape(node)
    found = [dim for dim, size in enumerate(after) if size > 1 and prod(after[:dim]) == prod(before)]
    if not found:
        return None
    given, size = _shape(source)[dims[source]], after[found[0]]
    return found[0] if given % size == 0 or size % given == 0 else None


def _moved(node: fx.Node, dims: dict[fx.Node, int]) -> int | None:
    (source,) = node.all_input_nodes
    order = list(range(len(_shape(source))))
    if _operation(node) == "permute":
        order = [int(dim) % len(order) for dim in node.args[1]]  # type: ignore[union-attr, arg-type]
    else:
        one, other = (int(dim) % len(order) for dim in node.args[1:3])  # type: ignore[arg-type]
        order[one], order[other] = order[other], order[one]
    return order.index(dims[source])


def _widened(node: fx.Node, dims: dict[fx.Node, int]) -> int | None:
    (source,) = node.all_input_nodes
    dim, length = dims[source], len(_shape(node))
    if _operation(node) == "expand":
        return dim + length - len(_shape(source))
    place = int(node.args[1]) % length  # type: ignore[arg-type]
    return dim + (place <= dim)


def _elsewhere(node: fx.Node, dims: dict[fx.Node, int]) -> int | None:
    """Taken apart or put together along another dimension than the one that is cut."""
    filled = [each for each in node.all_input_nodes if prod(_shape(each))]  # a cache of earlier positions is empty
    found = {dims.get(each) for each in filled}
    place = int(_argument(node, 1, "dim") or 0) % len(_shape(node))  # type: ignore[call-overload]
    if len(found) != 1 or (dim := found.pop()) is None:
        return None
    whole = _operation(node) == "slice" and _shape(node)[dim] == _shape(filled[0])[dim]
    return dim if place != dim or whole else None


def _by_head(node: fx.Node, dims: dict[fx.Node, int]) -> int | None:
    """Heads stand before positions and their numbers; a mask that is whole is the same for all of them."""
    values, others = node.all_input_nodes[:3], node.all_input_nodes[3:]
    length = len(_shape(node))
    if any(dims.get(each) != length - 3 for each in values):
        return None
    for mask in others:
        if mask in dims or (len(_shape(mask)) >= 3 and _shape(mask)[-3] != 1):
            return None
    return length - 3
