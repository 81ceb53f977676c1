"""A trained network in one file that holds no code: weights, and the graph of operations between them.

``torch.export`` traces the network to a graph of ATen operations with a free batch size. Its own archive is not used:
``torch.export.load`` unpickles, evaluates expressions and opens shared libraries found in the file. Here the graph is
JSON in the header of a safetensors file (https://huggingface.co/docs/safetensors), beside the weights under their own
names, and reading it back can reach nothing but tensor operations of ATen.
"""

import json
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.export.graph_signature import InputKind, OutputKind

from sparkdl.errors import ModelError

__all__ = ["NETWORK_FILE", "Network", "export_network", "load_network", "load_weights"]

NETWORK_FILE = "network.safetensors"
"""What the network is called in the folder of a registered model."""

VERSION = 1

ARITHMETIC: dict[str, Callable[..., Any]] = {
    f"operator.{name}": getattr(operator, name)
    for name in ("add", "sub", "mul", "floordiv", "truediv", "mod", "neg", "getitem")
}
"""What a graph may do with sizes, and the way to one of an operation's several results."""

CONSTANTS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
"""Arguments that are neither numbers nor tensors, kept by their name in ``torch``."""


def export_network(module: nn.Module, path: str | Path, sample: torch.Tensor) -> Path:
    """Write the network in evaluation mode, with the batch size left free. Runs on the driver or on a rank.

    ``sample`` is a batch of inputs; only its type and shape behind the first dimension matter. The file's answers for
    one and for three rows are compared with the module's before this returns. Raises :class:`ModelError` if the
    network cannot be traced (control flow that depends on values), fixes the batch size, or answers otherwise.
    """
    path = Path(path)
    modes = {part: part.training for part in module.modules()}
    try:
        program = _trace(module.eval(), sample)
        tensors, graph = _describe(program)
        save_file(tensors, path, metadata={"sparkdl": json.dumps(graph)})
        _compare(module, load_network(path), sample)
    finally:
        for part, mode in modes.items():
            part.training = mode
    return path


def load_network(path: str | Path) -> "Network":
    """Read a network written by :func:`export_network`, for inference on the CPU. Runs anywhere.

    Nothing in the file is executed by reading it, and what it asks for when called is restricted to tensor operations.
    Raises :class:`ModelError` if the file is missing, damaged, or holds anything else.
    """
    tensors, graph = _read(path)
    try:
        return Network(tensors, graph)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"the network in {path} is damaged: {type(error).__name__}: {error}") from error


def load_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """The state dict of the network that was exported, to go on training from. Runs anywhere.

    Raises :class:`ModelError` if the file is missing, damaged, or holds anything else.
    """
    tensors, graph = _read(path)
    constants = set(graph.get("constants", ()))
    return {name: tensor for name, tensor in tensors.items() if name not in constants}


class Network(nn.Module):
    """A network read from a file: its operations one after another, on the device of its input."""

    def __init__(self, tensors: dict[str, torch.Tensor], graph: dict[str, Any]) -> None:
        super().__init__()
        self._tensors = tensors
        self._weights = {str(node): str(name) for node, name in graph["weights"].items()}
        missing = set(self._weights.values()) - set(tensors)
        if missing:
            raise ModelError(f"the network lacks the weights {', '.join(sorted(missing))}")
        self._input, self._output = str(graph["input"]), str(graph["output"])
        self._steps = [
            (str(step["name"]), _operation(step["op"]), step["args"], step["kwargs"]) for step in graph["steps"]
        ]
        self._last_use = _last_uses(self._steps, keep={self._output})

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Logits of shape (n, classes) for a batch of any size."""
        values: dict[str, Any] = {node: self._tensors[name] for node, name in self._weights.items()}
        values[self._input] = inputs
        for (name, operation, args, kwargs), done in zip(self._steps, self._last_use, strict=True):
            values[name] = operation(
                *[_decode(arg, values, inputs.device) for arg in args],
                **{key: _decode(arg, values, inputs.device) for key, arg in kwargs.items()},
            )
            for used in done:
                del values[used]
        output: torch.Tensor = values[self._output]
        return output

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "Network":
        """What ``.to()`` and its like do, for tensors whose dotted names a module cannot register."""
        self._tensors = {name: fn(tensor) for name, tensor in self._tensors.items()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


def _trace(module: nn.Module, sample: torch.Tensor) -> torch.export.ExportedProgram:
    """The graph of ATen operations, for any number of rows."""
    rows = sample[:1].expand(2, *sample.shape[1:]).contiguous()  # one row would be taken for a constant
    try:
        with torch.no_grad():
            return torch.export.export(module, (rows,), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(
            f"the network cannot be exported for batches of any size: {reason}. Look in its forward() for decisions"
            " that depend on values, or for a batch size written as a number"
        ) from error


def _describe(program: torch.export.ExportedProgram) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors of a traced network, and the rest of it as JSON."""
    weights, inputs, constants = {}, [], []
    tensors = dict(program.state_dict)
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            inputs.append(spec.arg.name)
        elif isinstance(spec.target, str) and spec.kind is not InputKind.CUSTOM_OBJ:
            weights[spec.arg.name] = spec.target
            if spec.target not in tensors:
                tensors[spec.target] = program.constants[spec.target]
                constants.append(spec.target)
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
        "constants": constants,
        "steps": steps,
    }
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}, graph


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
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and target.namespace == "aten":
        return str(target)
    name = f"operator.{getattr(target, '__name__', target)}"
    if ARITHMETIC.get(name) is target:
        return name
    raise ModelError(f"the network uses {target}, which cannot be exported: only PyTorch's own tensor operations can")


def _operation(name: str) -> Callable[..., Any]:
    """The operation of this name, if it is one that only computes."""
    if name in ARITHMETIC:
        return ARITHMETIC[name]
    match = re.fullmatch(r"aten\.([a-z_][A-Za-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)", name)
    found = None
    if match and not match[1].startswith("__"):
        found = getattr(getattr(torch.ops.aten, match[1], None), match[2], None)
    # Of ATen, the operations that return nothing act on something else than tensors, and two take the name of a file.
    if (
        not isinstance(found, torch._ops.OpOverload)
        or not found._schema.returns
        or any(argument.name == "filename" for argument in found._schema.arguments)
    ):
        raise ModelError(f"the network asks for {name!r}, which is not an operation on tensors; it is not loaded")
    return found


def _encode(value: Any) -> Any:
    """An argument as JSON."""
    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_encode(item) for item in value]
    if isinstance(value, torch.device):
        return {"device": "input"}
    for kind, type_ in CONSTANTS.items():
        if isinstance(value, type_):
            return {kind: str(value).removeprefix("torch.")}
    raise ModelError(f"the network uses an argument of type {type(value).__name__}, which cannot be exported")


def _decode(value: Any, values: dict[str, Any], device: torch.device) -> Any:
    """The argument that :func:`_encode` wrote; tensors come from ``values``, and devices are the input's."""
    if isinstance(value, list):
        return [_decode(item, values, device) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, name),) = value.items()
    if kind == "node":
        return values[name]
    if kind == "device":
        return device
    constant = getattr(torch, name)
    if not isinstance(constant, CONSTANTS[kind]):
        raise ModelError(f"the network asks for the {kind} {name!r}, which does not exist")
    return constant


def _last_uses(steps: list[tuple[str, Any, Any, Any]], *, keep: set[str]) -> list[list[str]]:
    """For each step, the values that nothing after it reads: freed at once, so that memory does not grow with depth."""
    seen, result = set(keep), []
    for name, _, args, kwargs in reversed(steps):
        used = {*_nodes_in(args), *_nodes_in(kwargs), name}
        result.append(sorted(used - seen))
        seen |= used
    return result[::-1]


def _nodes_in(value: Any) -> set[str]:
    if isinstance(value, list):
        return {name for item in value for name in _nodes_in(item)}
    if isinstance(value, dict):
        if isinstance(value.get("node"), str):
            return {value["node"]}
        return {name for item in value.values() for name in _nodes_in(item)}
    return set()


def _read(path: str | Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            graph = json.loads((file.metadata() or {}).get("sparkdl", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except FileNotFoundError:
        raise ModelError(f"there is no network at {path}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"the network in {path} is damaged or not one of ours: {error}") from error
    if not isinstance(graph, dict) or graph.get("version") != VERSION:
        raise ModelError(f"{path} holds weights but no network that this version of sparkdl can read")
    return tensors, graph


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
