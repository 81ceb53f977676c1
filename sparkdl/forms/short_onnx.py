"""An ONNX file without what nobody computes with: notes on nodes, inferred shapes, long names. Runs in tasks."""

from itertools import count
from pathlib import Path
from typing import Any

from sparkdl.extras import require

__all__ = ["shorten"]


def shorten(path: Path) -> None:
    """Write an ONNX file anew, which computes the same: of a small network, a tenth of its bytes may be such words.

    The names of inputs and outputs stay. So do all names where a node has a graph inside, which may know them.
    """
    onnx = require("onnx", extra="forms")
    model = onnx.load(path)
    graph = model.graph
    for each in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        each.ClearField("metadata_props")
        each.ClearField("doc_string")
    graph.ClearField("value_info")
    if not any(attribute.HasField("g") or attribute.graphs for node in graph.node for attribute in node.attribute):
        _rename(graph)
    onnx.save(model, path)


def _rename(graph: Any) -> None:
    kept = {value.name for value in (*graph.input, *graph.output)} | {""}  # "" is an input that is left out
    numbers, names = count(), {name: name for name in kept}

    def short(name: str) -> str:
        if name not in names:
            names[name] = next(found for number in numbers if (found := f"{number:x}") not in kept)
        return names[name]

    for tensor in graph.initializer:
        tensor.name = short(tensor.name)
    for node in graph.node:
        node.ClearField("name")
        node.input[:] = map(short, node.input)
        node.output[:] = map(short, node.output)
