"""A network's graph of ATen operations, with a variable number of rows, and which of its values are learned.

Runs anywhere.
"""

from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.export import Dim
from torch.export.graph_signature import InputKind

from sparkdl.errors import ModelError
from sparkdl.inputs.tensors import Inputs
from sparkdl.models import LOGITS, OnlyTensors, in_mode

__all__ = ["NetworkGraph", "Places", "bytes_of", "in_evaluation", "overwrites", "trace"]

KEY = "cluster.layout.pipeline"
OTHERWISE = {"train": False, "training": False, "dropout_p": 0.0}
"""The arguments by which ATen operations differ in evaluation, with their values there."""
KEEPS_STATISTICS = "aten::batch_norm", "aten::instance_norm"
"""Operations that change running means although their schema does not declare it."""


class Places(NamedTuple):
    """The placeholders of a graph's tensors."""

    inputs: tuple[fx.Node, ...]
    """The inputs in order."""
    parameters: Mapping[fx.Node, str]
    """The names of parameters."""
    buffers: Mapping[fx.Node, str]
    constants: Mapping[fx.Node, torch.Tensor]


class NetworkGraph:
    """The operations of a network, for training and for evaluation."""

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        nodes = {node.name: node for node in program.graph.nodes}
        found: dict[InputKind, dict[fx.Node, str]] = {kind: {} for kind in InputKind}
        for spec in program.graph_signature.input_specs:
            found[spec.kind][nodes[spec.arg.name]] = str(spec.target)
        parameters, buffers = (
            {node: name.removeprefix("network.") for node, name in found[kind].items()}
            for kind in (InputKind.PARAMETER, InputKind.BUFFER)
        )
        constants: dict[fx.Node, Any] = {
            node: program.constants[name] for node, name in found[InputKind.CONSTANT_TENSOR].items()
        }
        self.places = Places(tuple(found[InputKind.USER_INPUT]), parameters, buffers, constants)
        self.operations = [node for node in program.graph.nodes if node.op == "call_function"]
        """The operations in the order of their computation."""
        self.changes_buffers = any(
            overwrites(node) and any(each in buffers for each in node.all_input_nodes) for node in self.operations
        )
        """Whether a pass changes buffers, such as running means."""
        (output,) = (node for node in program.graph.nodes if node.op == "output")
        self.logits: fx.Node = output.args[0][0]
        """The network's output."""

    @cached_property
    def number(self) -> dict[fx.Node, int]:
        """The position of each operation."""
        return {node: number for number, node in enumerate(self.operations)}

    @cached_property
    def learned(self) -> set[fx.Node]:
        """Operations whose values depend on parameters or are random, which only one stage computes."""
        found: set[fx.Node] = set()
        for node in self.operations:
            drawn = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            if drawn or any(each in found or each in self.places.parameters for each in node.all_input_nodes):
                found.add(node)
        return found

    def used_parameters(self, begin: int, end: int) -> set[str]:
        """The names of the parameters that operations from ``begin`` to before ``end`` use."""
        used = {each for node in self.operations[begin:end] for each in node.all_input_nodes}
        return {name for node, name in self.places.parameters.items() if node in used}

    @cached_property
    def last_use(self) -> dict[fx.Node, int]:
        """By learned value: the position of the last operation that uses it; one past the end for the output."""
        end = len(self.operations)
        return {
            node: max((self.number.get(user, end) for user in node.users), default=-1)
            for node in self.operations
            if node in self.learned
        }

    def crossing(self, place: int) -> list[fx.Node]:
        """The learned values that are computed before a position and used from there on."""
        return [node for node in self.operations[:place] if self.last_use.get(node, -1) >= place]


def bytes_of(node: fx.Node) -> int:
    """Bytes of an operation's result for the rows with which the graph was traced."""
    value: Any = node.meta["val"]
    return prod(map(_size, value.shape)) * int(value.element_size())


def _size(size: int | torch.SymInt) -> int:
    hint = size if isinstance(size, int) else size.node.hint
    return int(hint or 1)


def overwrites(node: fx.Node) -> bool:
    """Whether an operation changes its arguments."""
    schema = node.target._schema if isinstance(node.target, torch._ops.OpOverload) else None
    return schema is not None and (schema.is_mutable or schema.name in KEEPS_STATISTICS)


def in_evaluation(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operation that differ in evaluation, by name, for example without dropout."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return {}
    names = [argument.name for argument in node.target._schema.arguments]
    return {name: OTHERWISE[name] for name in names if name in OTHERWISE}


def trace(model: nn.Module, rows: Inputs) -> NetworkGraph:
    """Trace a network, whose weights may be on disk. Raises :class:`ModelError` if that fails.

    ``rows`` has two or more rows. Their number is variable in the graph, as are lengths of inputs that name them.
    """
    names, given = (list(rows), tuple(rows.values())) if isinstance(rows, dict) else (None, (rows,))
    free = [dict.fromkeys(range(each.ndim if names else 1), Dim.AUTO) for each in given]
    try:
        with in_mode(model, training=True), torch.enable_grad():  # without gradients, layers may take fast paths
            program = torch.export.export(OnlyTensors(model, names, (LOGITS,)), given, dynamic_shapes=(tuple(free),))
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(
            f"{KEY} looks in the network's graph for places to cut it, and it cannot be traced: {reason}. Look in its"
            " forward() for decisions that depend on values, or set it to 1"
        ) from error
    graph = NetworkGraph(program)
    for node in graph.places.inputs:
        size: Any = node.meta["val"].shape[0]
        fixed = size if isinstance(size, int) else size.node.maybe_as_int()
        if fixed is not None:
            raise ModelError(
                f"{KEY} gives stages parts of a batch, and the network takes no other numbers of rows than {fixed};"
                " look in its forward() for a batch size that is written out, or set it to 1"
            )
    return graph
