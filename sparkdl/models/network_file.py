"""Reads a network from a file that contains no code: its weights, and the graph of operations between them.

``torch.export.load`` unpickles, evaluates expressions and opens shared libraries found in a file. Here, the graph is
JSON in the header of a safetensors file (https://huggingface.co/docs/safetensors), and can only call known tensor
operations of ATen (:mod:`sparkdl.models.operations`). The weights are in the same file under their own names.
:mod:`sparkdl.models.export` writes such files.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.models.beside_base import put_back
from sparkdl.models.operations import operation
from sparkdl.models.outputs import LOGITS
from sparkdl.models.reference import REFERENCE, rebuild, require_trust

__all__ = [
    "CONSTANTS",
    "INPUT",
    "IN_HALF",
    "IN_INT8",
    "NAMED",
    "NETWORK_FILE",
    "UNNAMED",
    "Network",
    "load_network",
    "load_weights",
    "module_of",
    "read_parts",
    "scale_of",
]

NETWORK_FILE = "network.safetensors"
"""The network's file in the folder of a registered model."""

UNNAMED = 1
"""The version of files of networks with a single input and only logits as output. ``input`` and ``output`` are their
nodes in the graph."""
NAMED = 2
"""The version of files of all other networks. ``inputs`` and ``outputs`` have their nodes by name."""
INPUT = "input"
"""The name of a single, unnamed input in files of the second version."""
IN_HALF = "in_half"
"""The key with the names of tensors that are float16 in the file and float32 in the network."""
IN_INT8 = "in_int8"
"""The key with the names of tensors that are int8 in the file; another tensor has the scales of each one's rows."""

CONSTANTS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
"""Arguments that are neither numbers nor tensors. A file has their names in ``torch``."""


def load_network(path: str | Path, *, trusted: Collection[str] = ()) -> nn.Module:
    """Read a network written by :func:`export_network`, for inference on the CPU. Runs anywhere.

    Reading executes nothing in the file, and the network can only call tensor operations. A network that could not be
    exported (:mod:`sparkdl.models.reference`) is built by its own code, if its module or package is among the
    ``trusted`` ones. Raises :class:`ModelError` if the file is missing, damaged, or not a network, and if that code is
    not trusted, missing, or builds a network that the weights do not fit.
    """
    tensors, graph = read_parts(path)
    if graph["version"] == REFERENCE:
        require_trust(graph, path, trusted)
        return rebuild(graph, tensors, path)
    try:
        return Network(tensors, graph)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"the network in {path} is damaged: {type(error).__name__}: {error}") from error


def scale_of(name: str) -> str:
    """The name of the tensor with the scales of an int8 tensor."""
    return f"{name}.scale_of_rows"


def module_of(path: str | Path) -> str | None:
    """The module whose code builds a network that could not be exported; None for an exported one. Runs anywhere.

    Raises :class:`ModelError` if the file is missing or damaged.
    """
    _, graph = read_parts(path, with_tensors=False)
    return str(graph.get("model", "")).partition(":")[0] if graph["version"] == REFERENCE else None


def load_weights(path: str | Path) -> dict[str, torch.Tensor]:
    """The state dict of the exported network, from which training can continue. Runs anywhere.

    Raises :class:`ModelError` if the file is missing, damaged, or not a network.
    """
    tensors, graph = read_parts(path)
    constants = set(graph.get("constants", ()))
    return {name: tensor for name, tensor in tensors.items() if name not in constants}


class Network(nn.Module):
    """A network read from a file: its operations one after another, on the device of its input."""

    def __init__(self, tensors: dict[str, torch.Tensor], graph: dict[str, Any]) -> None:
        super().__init__()
        self._tensors = tensors
        self._weights = {str(node): str(name) for node, name in graph["weights"].items()}
        self._in_int8 = {str(name): scale_of(str(name)) for name in graph.get(IN_INT8, ())}
        missing = {*self._weights.values(), *self._in_int8.values()} - set(tensors)
        if missing:
            raise ModelError(f"the network lacks the weights {', '.join(sorted(missing))}")
        self._named = graph["version"] == NAMED
        inputs = graph["inputs"] if self._named else {INPUT: graph["input"]}
        outputs = graph["outputs"] if self._named else {LOGITS: graph["output"]}
        self._inputs = {str(name): str(node) for name, node in inputs.items()}
        self._outputs = {str(name): str(node) for name, node in outputs.items()}
        self._steps = [_Step.parse(step) for step in graph["steps"]]
        self._check_order()
        self._last_use = _last_uses(self._steps, keep={*self._outputs.values()})

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """Its weights and constants."""
        return tuple(self._tensors.values())

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of its inputs, in order; ``input`` for a single, unnamed one."""
        return tuple(self._inputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of its outputs."""
        return tuple(self._outputs)

    def forward(self, *unnamed: torch.Tensor, **named: torch.Tensor) -> torch.Tensor | dict[str, torch.Tensor]:
        """The logits, or the outputs by name, for inputs of shape (n, ...) with any n, given by name or in order.

        Raises :class:`ModelError` if inputs are missing or unknown.
        """
        given = {**dict(zip(self._inputs, unnamed, strict=False)), **named}
        if given.keys() != self._inputs.keys():
            raise ModelError(
                f"the network takes the inputs {', '.join(self._inputs)}, but was given {', '.join(given) or 'none'}"
            )
        values: dict[str, Any] = {
            node: self._tensors[name] for node, name in self._weights.items() if name not in self._in_int8
        }
        values |= {self._inputs[name]: tensor for name, tensor in given.items()}
        device = next(iter(given.values())).device
        for step, done in zip(self._steps, self._last_use, strict=True):
            for node in step.reads - values.keys():
                values[node] = self._whole(self._weights[node])
            values[step.name] = step.operation(
                *[_fill(arg, values, device) for arg in step.args],
                **{key: _fill(arg, values, device) for key, arg in step.kwargs.items()},
            )
            for used in done:
                del values[used]
        found: dict[str, torch.Tensor] = {name: values[node] for name, node in self._outputs.items()}
        return found if self._named else found[LOGITS]

    def _whole(self, name: str) -> torch.Tensor:
        """An int8 weight as float32."""
        scale = self._tensors[self._in_int8[name]]
        return self._tensors[name].to(scale.dtype) * scale

    def _check_order(self) -> None:
        """Check that every value is computed before a step reads it."""
        known = {*self._weights, *self._inputs.values()}
        for step in self._steps:
            if not step.reads <= known:
                raise ModelError(f"the network's step {step.name!r} reads a value that no earlier step computes")
            known.add(step.name)
        if not known.issuperset(self._outputs.values()):
            raise ModelError("the network's output is not computed by any of its steps")

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "Network":
        """Implements ``.to()`` and similar methods for tensors whose dotted names a module cannot register."""
        self._tensors = {name: fn(tensor) for name, tensor in self._tensors.items()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return self


@dataclass(frozen=True)
class _Reference:
    """A placeholder for the value of an earlier step, in the arguments of a later one."""

    name: str


class _InputDevice:
    """A placeholder for the device of the network's input."""


@dataclass(frozen=True)
class _Step:
    """One operation of a network."""

    name: str
    operation: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]

    @classmethod
    def parse(cls, step: dict[str, Any]) -> "_Step":
        kwargs = {str(key): _decode(value) for key, value in step["kwargs"].items()}
        return cls(str(step["name"]), operation(step["op"]), [_decode(value) for value in step["args"]], kwargs)

    @property
    def reads(self) -> set[str]:
        """The values among its arguments."""
        return _references([*self.args, *self.kwargs.values()])


def _decode(value: Any) -> Any:
    """The argument that was encoded as JSON; tensors and the device are filled in when the network is called."""
    if isinstance(value, list):
        return [_decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, name),) = value.items()
    if kind == "node":
        return _Reference(str(name))
    if kind == "device":
        return _InputDevice()
    if kind == "complex":
        return complex(*map(float, name))
    constant = getattr(torch, name)
    if not isinstance(constant, CONSTANTS[kind]):
        raise ModelError(f"the network uses the {kind} {name!r}, which does not exist")
    return constant


def _fill(value: Any, values: dict[str, Any], device: torch.device) -> Any:
    """The argument, with placeholders replaced by tensors and the device."""
    if isinstance(value, _Reference):
        return values[value.name]
    if isinstance(value, list):
        return [_fill(item, values, device) for item in value]
    return device if isinstance(value, _InputDevice) else value


def _references(value: Any) -> set[str]:
    if isinstance(value, list):
        return {name for item in value for name in _references(item)}
    return {value.name} if isinstance(value, _Reference) else set()


def _last_uses(steps: list[_Step], *, keep: set[str]) -> list[list[str]]:
    """For each step, the values that no later step reads. They are freed at once, so that memory stays bounded."""
    seen, result = set(keep), []
    for step in reversed(steps):
        used = {*step.reads, step.name}
        result.append(sorted(used - seen))
        seen |= used
    return result[::-1]


def read_parts(path: str | Path, *, with_tensors: bool = True) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and the header of a network's file. Raises :class:`ModelError` if it is missing or not a network."""
    try:
        with safe_open(path, framework="pt") as file:
            graph = json.loads((file.metadata() or {}).get("sparkdl", "null"))
            names = file.keys() if with_tensors else ()
            tensors = {name: file.get_tensor(name) for name in names}
    except FileNotFoundError:
        raise ModelError(f"there is no network at {path}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise ModelError(f"the network in {path} is damaged or not one of ours: {error}") from error
    if not isinstance(graph, dict) or graph.get("version") not in (UNNAMED, NAMED, REFERENCE):
        raise ModelError(f"{path} holds weights but no network that this version of sparkdl can read")
    for name in set(graph.get(IN_HALF, ())) & tensors.keys():
        tensors[name] = tensors[name].float()
    return tensors | _beside(graph, path) if with_tensors and "base" in graph else tensors, graph


def _beside(graph: dict[str, Any], path: str | Path) -> dict[str, torch.Tensor]:
    try:
        return put_back(graph["base"], Path(path).parent)
    except ModelError:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ModelError(f"the adapters beside {path} are damaged: {type(error).__name__}: {error}") from error
