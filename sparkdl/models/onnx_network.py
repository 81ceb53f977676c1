"""Opens a network from an ONNX file (https://onnx.ai/onnx/repo-docs/IR.html); ONNX Runtime computes it on the CPU.

Only operators that are built into ONNX Runtime are executed: no library of custom operators is loaded, and weights in
other files are refused.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.extras import require

__all__ = ["OnnxNetwork"]

Arrays = dict[str, np.ndarray[Any, Any]]
_ERRORS_ONLY = 3
"""ONNX Runtime's log level: its warnings are only about speed."""


class OnnxNetwork(nn.Module):
    """A network with the same interface as :class:`~sparkdl.models.network_file.Network`. Runs in tasks and servers.

    It computes with as many threads as PyTorch has when it is opened (``torch.get_num_threads()``). Raises
    :class:`~sparkdl.errors.ConfigError` if ``onnxruntime`` is not installed, and :class:`ModelError` for a file that is
    missing, damaged, or uses operators that ONNX Runtime lacks.
    """

    def __init__(self, path: str | Path, *, rows_at_a_time: int | None = None) -> None:
        """With ``rows_at_a_time``, larger batches are computed in pieces of so many rows, which fit into a cache."""
        super().__init__()
        self._rows_at_a_time = rows_at_a_time
        runtime = require("onnxruntime", extra="forms")
        content = _read(path)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # other tasks need the cores
        try:
            self._session: Any = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's exceptions have no common class
            raise ModelError(f"ONNX Runtime cannot open the network in {path}: {_first_line(error)}") from None
        self._inputs = tuple(each.name for each in self._session.get_inputs())
        self._outputs = [each.name for each in self._session.get_outputs()]

    def forward(self, *unnamed: torch.Tensor, **named: torch.Tensor) -> dict[str, torch.Tensor]:
        """The outputs by name, for inputs of shape (n, ...) with any n, given by name or in order.

        Raises :class:`ModelError` if inputs are missing or unknown, or have values that the network cannot compute.
        """
        given = {**dict(zip(self._inputs, unnamed, strict=False)), **named}
        if given.keys() != set(self._inputs):
            raise ModelError(
                f"the network takes the inputs {', '.join(self._inputs)}, but was given {', '.join(given) or 'none'}"
            )
        arrays: Arrays = {name: tensor.numpy() for name, tensor in given.items()}
        try:
            found = self._computed(arrays)
        except Exception as error:
            raise ModelError(f"ONNX Runtime cannot compute the network: {_first_line(error)}") from None
        return {name: torch.from_numpy(output) for name, output in zip(self._outputs, found, strict=True)}

    def _computed(self, arrays: Arrays) -> list[np.ndarray[Any, Any]]:
        count, step = len(next(iter(arrays.values()))), self._rows_at_a_time
        if step is None or count <= step:
            return list(self._session.run(self._outputs, arrays))
        starts = range(0, count, step)
        pieces = [{name: array[start : start + step] for name, array in arrays.items()} for start in starts]
        found = [self._session.run(self._outputs, piece) for piece in pieces]
        return [np.concatenate(parts) for parts in zip(*found, strict=True)]


def _read(path: str | Path) -> bytes:
    """The bytes of an ONNX file, which must contain its weights. Raises :class:`ModelError`."""
    onnx = require("onnx", extra="forms")
    try:
        content = Path(path).read_bytes()
        model = onnx.load_model_from_string(content)
    except FileNotFoundError:
        raise ModelError(f"there is no network at {path}") from None
    except Exception as error:  # errors of the protobuf library
        raise ModelError(f"the network in {path} is damaged: {_first_line(error)}") from None
    tensors = (*_of_graph(model.graph), *(tensor for each in model.functions for tensor in _of_nodes(each.node)))
    if any(tensor.external_data for tensor in tensors):
        raise ModelError(f"the network in {path} has weights in other files, which are refused; export it to one file")
    return content


def _of_graph(graph: Any) -> Iterator[Any]:
    """All tensors of a graph and of its nested graphs."""
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for inner in (attribute.g, *attribute.graphs):
                yield from _of_graph(inner)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
