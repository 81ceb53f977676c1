"""A trained network written to one file: weights, and the graph of operations between them.

``torch.export`` traces the network to a graph of ATen operations with a free batch size;
:mod:`sparkdl.models.network_file` says how it is kept and reads it back.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.export.graph_signature import InputKind, OutputKind

from sparkdl.errors import ModelError
from sparkdl.models.full_state import full_state
from sparkdl.models.network_file import CONSTANTS, VERSION, load_network
from sparkdl.models.operations import decompositions, operation

__all__ = ["TracedNetwork", "export_in_parts", "export_network", "trace_network", "write_network"]

LENGTH_BYTES = 8
"""With which a safetensors file begins: how long its header is."""
_TRACING = threading.Lock()
"""``torch.export`` keeps what it is about in variables of the process: of several threads, one at a time may trace."""


@dataclass(frozen=True)
class TracedNetwork:
    """What a network is whatever its weights: the graph of its operations, and tensors that are not in its state."""

    graph: dict[str, Any]
    constants: dict[str, torch.Tensor]


def export_network(module: nn.Module, path: str | Path, sample: torch.Tensor) -> Path:
    """Write the network in evaluation mode, with the batch size left free. Runs on the driver or on a rank.

    ``sample`` is a batch of inputs; only its type and shape behind the first dimension matter. The file's answers for
    one and for three rows are compared with the module's before this returns. Raises :class:`ModelError` if the
    network cannot be traced (control flow that depends on values), fixes the batch size, or answers otherwise.
    """
    return write_network(module, path, sample, trace_network(module, sample))


def trace_network(module: nn.Module, sample: torch.Tensor) -> TracedNetwork:
    """Find what :func:`export_network` writes beside the weights, and raise what it raises if that cannot be."""
    with _evaluating(module):
        return _describe(_trace(module, sample))


def write_network(module: nn.Module, path: str | Path, sample: torch.Tensor, traced: TracedNetwork) -> Path:
    """Do what :func:`export_network` does with a network that has been traced, maybe with other weights."""
    path = Path(path)
    with _evaluating(module):
        tensors = {**full_state(module), **traced.constants}
        kept = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
        save_file(kept, path, metadata={"sparkdl": json.dumps(traced.graph)})
        _compare(module, load_network(path), sample)
    return path


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Have a network in evaluation mode, and each of its parts in its own mode afterwards."""
    modes = {part: part.training for part in module.modules()}
    try:
        module.eval()
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode


@contextmanager
def export_in_parts(
    module: nn.Module, path: str | Path, sample: torch.Tensor, shapes: Mapping[str, Sequence[int]]
) -> Iterator[dict[str, torch.Tensor]]:
    """Write a network that is like another one but for the shapes of some weights. Runs on the driver or on a rank.

    ``module`` is written as :func:`export_network` does, with room for weights of these ``shapes``, by name. The block
    gets all weights as tensors that lie in the file and not in memory: whoever fills them needs no room for the whole.
    Raises :class:`ModelError` as :func:`export_network` does.
    """
    path = export_network(module, path, sample)
    given = sorted(load_file(path).items(), key=lambda item: -item[1].element_size())  # each begins where its type may
    header = _header(path)
    begin = 0
    for name, tensor in given:
        shape = list(shapes.get(name, tensor.shape))
        end = begin + prod(shape) * tensor.element_size()
        header[name] |= {"shape": shape, "data_offsets": [begin, end]}
        begin = end
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % LENGTH_BYTES)
    with path.open("wb") as stream:
        stream.write(len(written).to_bytes(LENGTH_BYTES, "little") + written)
        stream.truncate(stream.tell() + begin)
    bytes_ = torch.from_file(str(path), shared=True, size=path.stat().st_size, dtype=torch.uint8)
    content = bytes_[LENGTH_BYTES + len(written) :]
    tensors = {}
    for name, tensor in given:
        first, last = header[name]["data_offsets"]
        tensors[name] = content[first:last].view(tensor.dtype).view(header[name]["shape"])
        if name not in shapes:
            tensors[name].copy_(tensor)
    yield tensors


def _header(path: Path) -> dict[str, Any]:
    """What a safetensors file says of its tensors."""
    with path.open("rb") as stream:
        header: dict[str, Any] = json.loads(stream.read(int.from_bytes(stream.read(LENGTH_BYTES), "little")))
    return header


def _trace(module: nn.Module, sample: torch.Tensor) -> torch.export.ExportedProgram:
    """The graph of ATen operations, for any number of rows: what a file may not ask for is broken up if it can be."""
    rows = sample[:1].expand(2, *sample.shape[1:]).contiguous()  # one row would be taken for a constant
    try:
        with _TRACING, torch.no_grad():
            program = torch.export.export(module, (rows,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
            return _broken_up(program)
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(
            f"the network cannot be exported for batches of any size: {reason}. Look in its forward() for decisions"
            " that depend on values, or for a batch size written as a number"
        ) from error


def _broken_up(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The same without operations that a file may not ask for, and graphs inside it (autocast), if that can be."""
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


def _describe(program: torch.export.ExportedProgram) -> TracedNetwork:
    """The graph of a traced network as JSON, and its constants."""
    weights: dict[str, str] = {}
    inputs = []
    constants: dict[str, torch.Tensor] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(spec.arg.name)
        elif isinstance(spec.target, str) and spec.kind is not InputKind.CUSTOM_OBJ:
            weights[spec.arg.name] = spec.target
            if spec.kind is InputKind.CONSTANT_TENSOR:
                constants[spec.target] = program.constants[spec.target]
    results = [spec for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    if len(inputs) != 1 or len(results) != 1 or not isinstance(results[0].arg.name, str):
        raise ModelError("a network takes one tensor and returns one tensor of logits; this one does not")
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
    graph = {
        "version": VERSION,
        "input": inputs[0],
        "output": results[0].arg.name,
        "weights": weights,
        "constants": list(constants),
        "steps": steps,
    }
    return TracedNetwork(graph, constants)


def _is_check(node: torch.fx.Node) -> bool:
    """Whether the node only checks what was assumed in tracing, or computes what only such checks use."""
    if node.op != "call_function":
        return False
    name = getattr(node.target, "__name__", "")
    if name.startswith(("_assert", "sym_constrain", "_check")):
        return True
    sizes_only = getattr(node.target, "__module__", "") in ("_operator", "operator", "math", "torch")
    return sizes_only and all(_is_check(user) for user in node.users)


def _operation_name(node: torch.fx.Node) -> str:
    """What the file calls the operation; raises :class:`ModelError` for one that it may not ask for."""
    target: Any = node.target
    if isinstance(target, str):
        raise ModelError(
            f"the network has a part {target!r} that is computed under a condition or in a loop of PyTorch's own"
            " (torch.cond, while_loop); write it as operations on tensors (torch.where)"
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


def _compare(module: nn.Module, network: nn.Module, sample: torch.Tensor) -> None:
    """Check that both answer the same for one row and for three."""
    with torch.no_grad():
        for rows in (1, 3):
            batch = sample[:1].expand(rows, *sample.shape[1:]).contiguous()
            expected, got = module(batch).cpu(), network(batch.cpu())
            if got.shape != expected.shape or not torch.allclose(got, expected, rtol=1e-3, atol=1e-4, equal_nan=True):
                raise ModelError(
                    f"the exported network answers {tuple(got.shape)} for {rows} row(s) where the original answers"
                    f" {tuple(expected.shape)}, or other values: does its forward() keep state or draw random numbers?"
                )
