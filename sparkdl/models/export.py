"""Writes a trained network to one file: its weights, and the graph of operations between them.

``torch.export`` traces the network to a graph of ATen operations, in which the batch size and the lengths of sequences
are variable. :mod:`sparkdl.models.network_file` describes the file and reads it.
"""

import json
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim
from torch.export.graph_signature import InputKind, OutputKind

from sparkdl.errors import ModelError
from sparkdl.inputs.tensors import Inputs, answer, like
from sparkdl.models.beside_base import BesideBase
from sparkdl.models.full_state import full_state
from sparkdl.models.modes import in_mode
from sparkdl.models.network_file import CONSTANTS, INPUT, NAMED, UNNAMED, load_network
from sparkdl.models.operations import decompositions, operation
from sparkdl.models.outputs import LOGITS, OnlyTensors, named_outputs
from sparkdl.models.room_in_file import room_in_file

__all__ = ["TracedNetwork", "export_network", "trace_network", "write_network"]

_TRACING = threading.Lock()
"""``torch.export`` uses global variables of the process, so only one thread at a time may trace."""


@dataclass(frozen=True)
class TracedNetwork:
    """A network without its weights: the graph of its operations, and constants that are not in its state."""

    graph: dict[str, Any]
    constants: dict[str, torch.Tensor]
    outputs: tuple[str, ...] = (LOGITS,)
    """The outputs that the graph computes."""
    lengths: tuple[str, ...] = ()
    """The inputs whose second dimension may have any length."""

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata in the file's header."""
        return {"sparkdl": json.dumps(self.graph)}


def export_network(
    module: nn.Module,
    path: str | Path,
    sample: Inputs,
    *,
    outputs: Sequence[str] = (LOGITS,),
    lengths: Collection[str] = (),
) -> Path:
    """Write the network in evaluation mode, for any batch size. Runs on the driver or on a rank.

    ``sample`` is a batch of inputs, of which only types and shapes matter; the first dimension is variable, and for the
    inputs in ``lengths`` also the second one, which must be at least 3 in the sample. ``outputs`` are the outputs of
    the network that the file computes (:mod:`sparkdl.models.outputs`). Before this returns, the file's outputs for one
    and for three rows are compared with the module's.

    Raises :class:`ModelError` if the network cannot be traced (control flow that depends on values), works only for one
    size of a variable dimension, lacks an output, or gives other results than the file.
    """
    return write_network(module, path, sample, trace_network(module, sample, outputs=outputs, lengths=lengths))


def trace_network(
    module: nn.Module, sample: Inputs, *, outputs: Sequence[str] = (LOGITS,), lengths: Collection[str] = ()
) -> TracedNetwork:
    """The part of :func:`export_network` before weights are written. Raises the same errors."""
    with in_mode(module, training=False), torch.no_grad():
        rows = like(sample, partial(_rows, count=2))  # torch.export takes a dimension of 1 for a constant
        plain = isinstance(rows, torch.Tensor) and tuple(outputs) == (LOGITS,)
        names = list(rows) if isinstance(rows, dict) else None
        if plain and isinstance(answer(module, rows), torch.Tensor):
            traced: nn.Module = module
            within = ""
        else:
            traced = OnlyTensors(module, names, outputs)
            within = "network."
        inputs, results, graph, constants = _describe(_trace(traced, rows, lengths), within)
        places = {"version": UNNAMED, "input": inputs[0], "output": results[0]}
        if not plain:
            inputs_by_name = dict(zip(names or [INPUT], inputs, strict=True))
            places = {"version": NAMED, "inputs": inputs_by_name, "outputs": dict(zip(outputs, results, strict=True))}
        return TracedNetwork(places | graph, constants, tuple(outputs), tuple(lengths))


def write_network(
    module: nn.Module, path: str | Path, sample: Inputs, traced: TracedNetwork, beside: BesideBase | None = None
) -> Path:
    """The part of :func:`export_network` after tracing; the module may have other weights than the traced one.

    With ``beside``, adapters and the weights of the base network are not in the file.
    """
    path, metadata = Path(path), traced.metadata
    with in_mode(module, training=False):
        tensors = {**full_state(module), **traced.constants}
        kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        if beside:
            kept, described = beside.take_out(kept, path.parent)
            metadata = replace(traced, graph=traced.graph | {"base": described}).metadata
        for name, room in room_in_file(path, kept, {}, metadata).items():
            room.copy_(kept[name])
        _compare(module, load_network(path), sample, traced)
    return path


def _rows(tensor: torch.Tensor, *, count: int) -> torch.Tensor:
    """The first row, repeated ``count`` times."""
    return tensor[:1].expand(count, *tensor.shape[1:]).contiguous()


def _trace(module: nn.Module, rows: Inputs, lengths: Collection[str]) -> torch.export.ExportedProgram:
    """The graph of ATen operations for any number of rows; operations that a file must not contain are decomposed."""
    free: list[dict[int, Any]]
    if isinstance(rows, dict):
        free = [{0: Dim.DYNAMIC, 1: Dim.DYNAMIC} if name in lengths else {0: Dim.DYNAMIC} for name in rows]
        given = tuple(rows.values())
    else:
        free, given = [{0: Dim.DYNAMIC}], (rows,)
    shapes = (tuple(free),) if isinstance(module, OnlyTensors) else tuple(free)
    try:
        with _TRACING, torch.no_grad():
            return _broken_up(torch.export.export(module, given, dynamic_shapes=shapes))
    except ModelError:
        raise
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        sizes = "batches and sequences" if lengths else "batches"
        raise ModelError(
            f"the network cannot be exported for {sizes} of any size: {reason}. Look in its forward() for control flow"
            " that depends on values, or for a size that is written as a number"
        ) from error


def _broken_up(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with unsupported operations decomposed and nested graphs (autocast) inlined, as far as possible."""
    while True:
        names = {str(node.target) for node in program.graph.nodes}
        table, nested = decompositions(names), _has_graphs(program)
        if not table and not nested:
            return program
        program = program.run_decompositions(table)
        if names == {str(node.target) for node in program.graph.nodes}:
            return program


def _has_graphs(program: torch.export.ExportedProgram) -> bool:
    return any(node.op == "get_attr" for node in program.graph.nodes)


def _describe(
    program: torch.export.ExportedProgram, within: str
) -> tuple[list[str], list[str], dict[str, Any], dict[str, torch.Tensor]]:
    """The graph nodes of a traced network's inputs and outputs, its graph as JSON, and its constants.

    ``within`` is a prefix of the names of weights, which is removed in the file.
    """
    weights: dict[str, str] = {}
    inputs = []
    constants: dict[str, torch.Tensor] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(spec.arg.name)
        elif isinstance(spec.target, str) and spec.kind is not InputKind.CUSTOM_OBJ:
            weights[spec.arg.name] = spec.target.removeprefix(within)
            if spec.kind is InputKind.CONSTANT_TENSOR:
                constants[spec.target.removeprefix(within)] = program.constants[spec.target]
    results = [spec.arg.name for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    steps = []
    for node in program.graph.nodes:
        if node.op in ("placeholder", "output") or _is_check(node):
            continue
        steps.append(
            {
                "name": node.name,
                "op": _operation_name(node),
                "args": [_encode(arg) for arg in node.args],
                "kwargs": {key: _encode(arg) for key, arg in node.kwargs.items()},
            }
        )
    graph = {"weights": weights, "constants": list(constants), "steps": steps}
    return inputs, results, graph, constants


def _is_check(node: torch.fx.Node) -> bool:
    """Whether the node only checks assumptions of the tracing, or is used only by such checks."""
    if node.op != "call_function":
        return False
    name = getattr(node.target, "__name__", "")
    if name.startswith(("_assert", "sym_constrain", "_check")):
        return True
    sizes_only = getattr(node.target, "__module__", "") in ("_operator", "operator", "math", "torch")
    return sizes_only and all(_is_check(user) for user in node.users)


def _operation_name(node: torch.fx.Node) -> str:
    """The name of the operation in the file. Raises :class:`ModelError` for one that is not allowed in files."""
    target: Any = node.target
    if isinstance(target, str):
        raise ModelError(
            f"the network has a part {target!r} inside a control-flow operator of PyTorch (torch.cond, while_loop);"
            " write it as operations on tensors (torch.where)"
        )
    if isinstance(target, torch._ops.OpOverload):
        name = str(target)
    else:
        name = f"{target.__module__.removeprefix('_')}.{target.__name__}"
    operation(name)
    return name


def _encode(value: Any) -> Any:
    """An argument as JSON."""
    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.device):
        return {"device": "input"}
    for kind, type_ in CONSTANTS.items():
        if isinstance(value, type_):
            return {kind: str(value).removeprefix("torch.")}
    raise ModelError(f"the network uses an argument of type {type(value).__name__}, which cannot be exported")


def _compare(module: nn.Module, network: nn.Module, sample: Inputs, traced: TracedNetwork) -> None:
    """Check that both give the same results for one row and for three, and for sequences of another length."""
    shorter = traced.lengths and {
        name: tensor[:, :-1] if name in traced.lengths else tensor for name, tensor in dict(sample).items()
    }
    with torch.no_grad():
        for rows, of in ((1, sample), (3, shorter or sample)):
            batch = like(of, partial(_rows, count=rows))
            expected = named_outputs(answer(module, batch))
            found = named_outputs(answer(network, like(batch, torch.Tensor.cpu)))
            for name in traced.outputs:
                ours, got = expected[name].cpu(), found[name]
                if got.shape != ours.shape or not torch.allclose(got, ours, rtol=1e-3, atol=1e-4, equal_nan=True):
                    raise ModelError(
                        f"for {rows} row(s), the exported network returns {tuple(got.shape)} and the original"
                        f" {tuple(ours.shape)}, or other values: does its forward() keep state or draw random numbers?"
                    )
