"""Finds the layers of a network that can be cut for tensor parallelism in its graph. Runs on the driver.

A block is cut by columns, then by rows (Megatron-LM: Shoeybi et al., 2019, arXiv 1909.08053). It begins with linear
layers with whole inputs, of which each rank computes some outputs. Operations on each output separately follow
(activations, attention heads). It ends with a linear layer that takes these outputs and whose results are summed.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from math import gcd
from typing import NamedTuple

import torch
from torch import fx, nn
from torch.export.graph_signature import InputKind

from sparkdl.errors import ModelError
from sparkdl.inputs.tensors import Inputs
from sparkdl.layouts.cut_dimensions import WholeError, operation, shape_of, spread
from sparkdl.layouts.front import find_front
from sparkdl.models import LOGITS, OnlyTensors, in_mode
from sparkdl.settings.cluster import CutStyle

__all__ = ["CutBlock", "TensorPlan", "find_plan"]

LARGE_TABLE = 1 << 20
"""The least number of weights of an embedding that is cut, as its exchange would not pay otherwise."""
SMALL_BLOCK = 0.01
"""A block with a smaller share of all weights that can be cut is computed whole by every rank."""


class CutBlock(NamedTuple):
    """Linear layers that are cut together, by name."""

    columns: tuple[str, ...]
    """The layers of which each rank has some outputs."""
    row: str
    """The layer that takes these outputs."""
    units: int
    """The number of units that are divided among ranks: neurons or attention heads."""

    @property
    def layers(self) -> tuple[str, ...]:
        """The names of all layers."""
        return *self.columns, self.row


class TensorPlan(NamedTuple):
    """How the ranks of a replica share the layers of a network."""

    ranks: int
    blocks: tuple[CutBlock, ...]
    embeddings: tuple[str, ...] = ()
    """The embeddings whose rows are divided among ranks."""
    front: tuple[str, ...] = ()
    """The parameters before the first block, if each rank computes that part for some rows of a batch only; empty if
    every rank computes it for all rows."""


def find_plan(model: nn.Module, rows: Inputs, ranks: int, given: Mapping[str, CutStyle] | None = None) -> TensorPlan:
    """The plan for ``ranks`` ranks, from the network's training graph for some rows.

    Without a ``given`` plan, all layers are cut that can be cut and are large enough to pay for it. A given plan has
    styles by the names of layers, in which ``*`` stands for anything, as in the plans of PyTorch's
    ``parallelize_module`` and of transformers. Layers before those that it names are computed by row where they can be.

    Raises :class:`ModelError` for a network that cannot be traced, for one that has nothing to cut, and for a given
    plan that does not fit it.
    """
    graph, inputs, weights = _traced(model, rows)
    layers = {name: module for name, module in model.named_modules() if type(module) in (nn.Linear, nn.Embedding)}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    counts: dict[int, int] = {}
    for parameter in parameters.values():
        counts[id(parameter)] = counts.get(id(parameter), 0) + 1
    named: dict[fx.Node, str] = {}
    for node in graph.nodes:
        name = _layer_of(node, weights)
        if name in layers and counts[id(layers[name].weight)] == 1 and len(_weight(node).users) == 1:
            named[node] = name
    linear = {node: name for node, name in named.items() if isinstance(layers[name], nn.Linear)}
    if given:
        blocks, tables = _given(given, named, linear, layers, ranks)
    else:
        blocks, tables = _found(named, linear, layers, ranks)
    taken = {name for block in blocks for name in block.layers}
    columns = [node for node, name in linear.items() if blocks and name in blocks[0].columns]
    cut = {node for node, name in named.items() if name in taken or name in tables}
    front = find_front(columns, inputs, weights, cut, of_linear_layers=bool(given)) if columns else ()
    if any(counts[id(parameters[name])] > 1 for name in front):  # another layer that shares it may compute all rows
        front = ()
    return TensorPlan(ranks, tuple(blocks), tuple(tables), front)


def _found(
    named: dict[fx.Node, str], linear: dict[fx.Node, str], layers: Mapping[str, nn.Module], ranks: int
) -> tuple[list[CutBlock], list[str]]:
    """Blocks and embeddings that can be cut and are large enough. Raises :class:`ModelError` where there are none."""
    blocks, reasons = _blocks(linear, ranks)
    embeddings = [name for node, name in named.items() if node not in linear]
    tables = [name for name in embeddings if _may_be_dealt(layers[name], ranks) and _is_large(layers[name])]
    if not blocks and not tables:
        raise ModelError(
            "cluster.layout.tensor: the network has nothing to cut, such as two torch.nn.Linear with an activation"
            f" between them, or attention; set it to 1. Found: {'; '.join(reasons) or 'no torch.nn.Linear'}"
        )
    return _large_ones(blocks, tables, layers), tables


def _given(
    given: Mapping[str, CutStyle],
    named: dict[fx.Node, str],
    linear: dict[fx.Node, str],
    layers: Mapping[str, nn.Module],
    ranks: int,
) -> tuple[list[CutBlock], list[str]]:
    """Those of a plan. Raises :class:`ModelError` where the network cannot be cut like that."""
    styles: dict[str, CutStyle] = {}
    for pattern, style in given.items():
        matching = fnmatch.filter(named.values(), pattern)
        if not matching:
            raise _misfit(
                f"no torch.nn.Linear or Embedding with a weight of its own has the name {pattern!r}. There are"
                f" {', '.join(named.values()) or 'none'}"
            )
        styles |= dict.fromkeys(matching, style)
    blocks, tables = [], []
    for node, name in named.items():
        if node in linear and styles.get(name) == "rowwise":
            blocks.append(_given_block(node, linear, styles, ranks))
        elif node not in linear and name in styles:
            if styles[name] == "colwise" or not _may_be_dealt(layers[name], ranks):
                raise _misfit(
                    f"the embedding {name!r} can only be cut by rowwise, into as many parts as it has words, and if its"
                    " gradients are dense and it has no max_norm"
                )
            tables.append(name)
    cut = {name for block in blocks for name in block.layers}
    if left := [name for node, name in named.items() if node in linear and name in styles and name not in cut]:
        raise _misfit(f"{left[0]!r} is cut by colwise, and no layer that takes its outputs is cut by rowwise")
    return blocks, tables


def _given_block(row: fx.Node, linear: dict[fx.Node, str], styles: Mapping[str, CutStyle], ranks: int) -> CutBlock:
    try:
        block = _block_for(row, linear, ranks)
    except WholeError as reason:
        raise _misfit(str(reason)) from None
    if other := [name for name in block.columns if styles.get(name) != "colwise"]:
        raise _misfit(
            f"{block.row!r} is cut by rowwise, so the layer before it, {other[0]!r}, has to be cut by colwise"
        )
    return block


def _misfit(reason: str) -> ModelError:
    return ModelError(f"cluster.layout.plan does not fit the network: {reason}. Change it, or leave it out")


def _traced(model: nn.Module, rows: Inputs) -> tuple[fx.Graph, list[fx.Node], dict[fx.Node, str]]:
    """The training graph of ATen operations, its inputs, and the names of weights by placeholder."""
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
    nodes = {node.name: node for node in program.graph.nodes}
    specs = program.graph_signature.input_specs
    inputs = [nodes[spec.arg.name] for spec in specs if spec.kind is InputKind.USER_INPUT]
    found = {nodes[spec.arg.name]: str(spec.target) for spec in specs if spec.kind is InputKind.PARAMETER}
    return program.graph, inputs, {node: name.removeprefix("network.") for node, name in found.items()}


def _weight(node: fx.Node) -> fx.Node:
    """The weight: the first argument of an embedding, the second of a linear layer."""
    weight = node.args[0 if operation(node) == "embedding" else 1]
    assert isinstance(weight, fx.Node)
    return weight


def _layer_of(node: fx.Node, weights: dict[fx.Node, str]) -> str:
    """The name of the linear layer or embedding that an operation computes; empty for other operations."""
    if operation(node) not in ("linear", "embedding"):
        return ""
    return weights.get(_weight(node), "").removesuffix(".weight")


def _blocks(linear: dict[fx.Node, str], ranks: int) -> tuple[list[CutBlock], list[str]]:
    """The blocks that can be cut for ``ranks`` ranks, and the reasons why others cannot."""
    blocks: list[CutBlock] = []
    taken = set[str]()
    reasons = []
    for row in linear:
        try:
            block = _block_for(row, linear, ranks)
        except WholeError as reason:
            reasons.append(str(reason))
            continue
        if taken.isdisjoint(block.layers):
            blocks.append(block)
            taken.update(block.layers)
    return blocks, reasons


def _block_for(row: fx.Node, linear: dict[fx.Node, str], ranks: int) -> CutBlock:
    """The block that ends in a linear layer, for ``ranks`` ranks. Raises :class:`WholeError`."""
    block = _block_before(row, linear)
    if block.units < ranks:
        raise WholeError(f"{block.row!r} has {block.units} units before it, fewer than {ranks} ranks")
    return block


def _large_ones(blocks: list[CutBlock], tables: list[str], layers: Mapping[str, nn.Module]) -> list[CutBlock]:
    """The blocks that are large enough to pay for their exchange."""
    least = SMALL_BLOCK * _numbers(layers, [*tables, *(name for block in blocks for name in block.layers)])
    return [block for block in blocks if _numbers(layers, block.layers) >= least]


def _numbers(layers: Mapping[str, nn.Module], names: Iterable[str]) -> int:
    """The number of weights of some layers."""
    return sum(parameter.numel() for name in names for parameter in layers[name].parameters())


def _may_be_dealt(layer: nn.Module, ranks: int) -> bool:
    assert isinstance(layer, nn.Embedding)
    return not layer.sparse and layer.max_norm is None and layer.num_embeddings >= ranks


def _is_large(table: nn.Module) -> bool:
    return _numbers({"table": table}, ["table"]) >= LARGE_TABLE


def _block_before(row: fx.Node, linear: dict[fx.Node, str]) -> CutBlock:
    """The block that ends in a linear layer. Raises :class:`WholeError` if there is none."""
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
    dims: dict[fx.Node, int] = {node: len(shape_of(node)) - 1 for node in columns}
    name = linear[row]
    if not columns:
        raise WholeError(f"no layer that can be cut leads to {name!r}")
    for node in row.graph.nodes:
        if node in before and node not in dims and any(each in dims for each in node.all_input_nodes):
            dims[node] = spread(node, dims, name)
    last = row.args[0]
    if not isinstance(last, fx.Node) or dims.get(last) != len(shape_of(last)) - 1:
        raise WholeError(
            f"the input of {name!r} is not split along the dimension by which the layers before it are cut"
        )
    users = [user for node in dims for user in node.users if not operation(user).startswith("_assert")]
    if stray := [user for user in users if user not in dims and user is not row]:
        raise WholeError(f"the input of {name!r} is also used by {operation(stray[0]) or stray[0].name}")
    units = gcd(*(shape_of(node)[dim] for node, dim in dims.items()))
    return CutBlock(tuple(linear[node] for node in columns), name, units)
