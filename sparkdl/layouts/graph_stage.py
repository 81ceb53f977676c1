"""One stage of a pipeline: a range of a network's operations as a module. Runs on ranks and on the driver."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import fx, nn
from typing_extensions import override

from sparkdl.layouts.block_edges import RanksOfReplica, exchange_of
from sparkdl.layouts.network_graph import NetworkGraph, in_evaluation, trace
from sparkdl.layouts.pipeline_plan import PipelinePlan

__all__ = ["GraphStage", "answer_by_stages", "input_names"]


def input_names(graph: NetworkGraph) -> list[str]:
    """A stage's names of the network's inputs, in order."""
    return [f"input_{number}" for number in range(len(graph.places.inputs))]


def answer_by_stages(
    model: nn.Module, plan: PipelinePlan, *, graph: NetworkGraph | None = None, together: RanksOfReplica | None = None
) -> torch.Tensor:
    """The network's outputs for the rows of a plan, in evaluation, computed in this process stage by stage.

    ``graph`` is the network's graph, if it has been traced; ``together`` are the ranks that compute its blocks.
    """
    graph = graph or trace(model, plan.rows)
    tensors = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers())}
    rows = list(plan.rows.values()) if isinstance(plan.rows, dict) else [plan.rows]
    inputs = dict(zip(input_names(graph), rows, strict=True))
    given: Any = ()
    for begin, end in plan.bounds(len(graph.operations)):
        stage = GraphStage(graph, begin, end, lambda: tensors, nullcontext, together=together, training=False)
        found = stage(*given, **inputs)
        given = found if isinstance(found, tuple) else (found,)
    answered: torch.Tensor = given[0]
    return answered


class GraphStage(nn.Module):
    """Computes the values that cross its end from those that cross its beginning and from the network's inputs.

    Values that depend on inputs alone, such as attention masks, are computed by each stage that uses them, and not
    sent. Parameters are the network's, and looked up at each call.
    """

    def __init__(
        self,
        graph: NetworkGraph,
        begin: int,
        end: int,
        tensors: Callable[[], Mapping[str, torch.Tensor]],
        context: Callable[[], AbstractContextManager[Any]],
        *,
        together: RanksOfReplica | None = None,
        training: bool,
    ) -> None:
        """Operations from ``begin`` to before ``end``; ``tensors`` are parameters and buffers by name.

        ``together`` are the ranks that compute blocks of this stage together, if there are such blocks.
        """
        super().__init__()
        self._trains, self._together = training, together
        last = end == len(graph.operations)
        self.takes = graph.crossing(begin)
        """The values that the stage before sends."""
        self.gives = [graph.logits] if last else graph.crossing(end)
        """The values that the next stage takes."""
        self._tensors, self._context = tensors, context
        self._used: list[int] = []
        self._names: list[str] = []
        self._constants: list[torch.Tensor] = []
        self._compute = self._compiled(graph, begin, end)

    @override
    def forward(self, *activations: torch.Tensor, **inputs: torch.Tensor) -> Any:
        tensors = self._tensors()
        given = [inputs[f"input_{number}"] for number in self._used]
        own = [tensors[name] for name in self._names]
        with self._context():
            found = self._compute(*activations, *given, *own, *self._constants)
        return found[0] if len(found) == 1 else found

    def _compiled(self, graph: NetworkGraph, begin: int, end: int) -> fx.GraphModule:
        needed = self._needed(graph, begin, end)
        own, places = fx.Graph(), graph.places
        copies: dict[fx.Node, fx.Node] = {node: own.placeholder(f"taken_{node.name}") for node in self.takes}
        outside = {each for node in needed for each in node.all_input_nodes if each.op == "placeholder"}
        for number, node in enumerate(places.inputs):
            if node in outside:
                copies[node] = own.placeholder(node.name)
                self._used.append(number)
        for node, name in {**places.parameters, **places.buffers}.items():
            if node in outside:
                copies[node] = own.placeholder(node.name)
                self._names.append(name)
        for node, value in places.constants.items():
            if node in outside:
                copies[node] = own.placeholder(node.name)
                self._constants.append(value)
        exchanges = nn.Module()
        for node in needed:
            if self._together and (exchange := exchange_of(node, self._together)):
                exchanges.add_module(node.name, exchange)
                copies[node] = own.call_module(node.name, (copies[node.all_input_nodes[0]],))
                continue
            copies[node] = copy = own.node_copy(node, copies.__getitem__)
            if not self._trains:
                for name, value in in_evaluation(node).items():
                    _set_argument(copy, name, value)
        # A value that only passes through is copied, so that gradients arrive at the copy and leave from the original.
        through = set(self.takes)
        alias = torch.ops.aten.alias.default
        own.output(
            tuple(own.call_function(alias, (copies[each],)) if each in through else copies[each] for each in self.gives)
        )
        return fx.GraphModule(exchanges, own)

    def _needed(self, graph: NetworkGraph, begin: int, end: int) -> list[fx.Node]:
        """The stage's own operations, and those on inputs alone whose results they take."""
        taken = set(self.takes)
        found = {node for node in graph.operations[begin:end] if node in graph.learned}
        stack = [each for node in found for each in node.all_input_nodes]
        while stack:
            node = stack.pop()
            if node.op == "call_function" and node not in found and node not in taken:
                found.add(node)
                stack += node.all_input_nodes
        return [node for node in graph.operations if node in found]


def _set_argument(node: fx.Node, name: str, value: Any) -> None:
    """Overwrite an argument of an ATen operation."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    place = names.index(name)
    if place < len(node.args):
        node.update_arg(place, value)
    else:
        node.update_kwarg(name, value)
