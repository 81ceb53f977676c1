"""Finds the places in a network's graph where it is cut into pipeline stages. Runs on the driver."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple

import torch
from packaging.version import Version
from torch import fx, nn

from sparkdl.errors import ConfigError, ModelError
from sparkdl.inputs.tensors import Inputs, count_rows, like
from sparkdl.layouts.network_graph import KEY, NetworkGraph, bytes_of, overwrites, trace

__all__ = ["PipelinePlan", "find_stages", "has_pipelines"]

OLDEST = Version("2.13")
"""The oldest PyTorch whose schedules fit: earlier ones take other arguments."""
PASSES = 3
"""Timed passes; for operations of a kind, the shortest of all times counts."""
BYTES_PER_SECOND = 1e9
"""Assumed bandwidth between ranks: of places that balance stages equally well, the one with less to send wins."""


class PipelinePlan(NamedTuple):
    """How the ranks of a replica share a network by its depth."""

    ranks: int
    cuts: tuple[int, ...]
    """The positions of the first operations of all stages but the first."""
    microbatches: int
    """The number of microbatches of a batch."""
    schedule: Literal["1f1b", "gpipe", "interleaved"]
    rows: Inputs
    """Example rows, with which the network is traced."""

    @property
    def stages(self) -> int:
        """The number of stages; with ``interleaved``, each rank has several."""
        return len(self.cuts) + 1

    def bounds(self, operations: int) -> list[tuple[int, int]]:
        """By stage: its range of operations (first, one past the last)."""
        return list(pairwise([0, *self.cuts, operations]))

    def stages_of(self, rank: int) -> list[int]:
        """The stages of a rank of a replica."""
        return list(range(rank, self.stages, self.ranks))


def has_pipelines() -> bool:
    """Whether the installed PyTorch has the schedules that are used."""
    return Version(torch.__version__) >= OLDEST


def find_stages(model: nn.Module, rows: Inputs, stages: int, *, count: int) -> tuple[int, ...]:
    """Cuts into ``stages`` stages whose forward passes over ``count`` rows take about the same time on this machine.

    Each stage has parameters. Raises :class:`ModelError` for a network that cannot be traced, that would train
    differently in a pipeline, or that has too few places to cut, and :class:`ConfigError` where PyTorch is too old.
    """
    if not has_pipelines():
        raise ConfigError(
            f"{KEY} takes PyTorch {OLDEST} or later, and {torch.__version__} is installed; upgrade it, or set it to 1"
        )
    graph = trace(model, rows)
    if graph.changes_buffers:
        raise ModelError(
            f"{KEY} cuts batches into microbatches, and the network changes buffers in a pass, as batch normalisation"
            " does, which would see parts of a batch; take another normalisation (torch.nn.GroupNorm), or set it to 1"
        )
    places = [place for place in range(1, len(graph.operations)) if _may_be_cut(graph, place)]
    learning = [bool(graph.used_parameters(place, place + 1)) for place in range(len(graph.operations))]
    uses = [0, *accumulate(learning)]
    most = len({uses[place] for place in places}) + 1
    if most < stages:
        raise ModelError(
            f"{KEY}: the network can be cut into {most} stages with parameters at most, and {stages} are asked for; set"
            " it to a smaller number"
        )
    seconds = _seconds(graph, model, like(rows, lambda tensor: tensor[:1].expand(count, *tensor.shape[1:]).clone()))
    crossing = [sum(map(bytes_of, graph.crossing(place))) for place in places]
    sending = [size * count / count_rows(rows) / BYTES_PER_SECOND for size in crossing]
    return _balanced(places, sending, seconds, uses, stages)


def _may_be_cut(graph: NetworkGraph, place: int) -> bool:
    """Whether all values that cross a position can be sent: floating-point tensors that are not overwritten later."""
    crossing = graph.crossing(place)
    if graph.operations[place] not in graph.learned:
        return False
    for node in crossing:
        value: Any = node.meta["val"]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return False
        if any(graph.number.get(user, -1) >= place and overwrites(user) for user in node.users):
            return False
    end = len(graph.operations)
    return bool(crossing and graph.used_parameters(0, place) and graph.used_parameters(place, end))


def _seconds(graph: NetworkGraph, model: nn.Module, rows: Inputs) -> list[float]:
    """Seconds of each learned operation on this machine; 0 for others, which are computed wherever they are needed.

    Operations of a kind get the same time, whatever else this machine does during one of them, so that repeated blocks
    are distributed evenly.
    """
    timed = _Timed(graph, dict(model.named_parameters(remove_duplicate=False)), dict(model.named_buffers()), rows)
    with torch.no_grad(), _random_kept():
        found = [timed.run() for _ in range(PASSES)]
    shortest: dict[str, float] = {}
    for times in found:
        for node, taken in zip(graph.operations, times, strict=True):
            kind = _kind(node)
            shortest[kind] = min(taken, shortest.get(kind, taken))
    return [shortest[_kind(node)] * (node in graph.learned) for node in graph.operations]


def _kind(node: fx.Node) -> str:
    """An operation and the shapes of its arguments; operations of one kind take the same time."""
    return f"{node.target} {fx.node.map_arg((node.args, node.kwargs), lambda each: _shape(each.meta['val']))}"


def _shape(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__


class _Timed:
    """Runs a graph operation by operation."""

    def __init__(self, graph: NetworkGraph, parameters: dict[str, Any], buffers: dict[str, Any], rows: Inputs) -> None:
        given = list(rows.values()) if isinstance(rows, dict) else [rows]
        self._graph = graph
        self._begin: dict[fx.Node, Any] = dict(zip(graph.places.inputs, given, strict=True))
        self._begin |= {node: parameters[name] for node, name in graph.places.parameters.items()}
        self._begin |= {node: buffers[name] for node, name in graph.places.buffers.items()}
        self._begin |= graph.places.constants
        self._last = {each: node for node in graph.operations for each in node.all_input_nodes}

    def run(self) -> list[float]:
        values, seconds = dict(self._begin), []
        for node in self._graph.operations:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            started = time.perf_counter()
            values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
            seconds.append(time.perf_counter() - started)
            for each in node.all_input_nodes:
                if self._last[each] is node:
                    del values[each]
        return seconds


@contextmanager
def _random_kept() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield


def _balanced(
    places: list[int], sending: list[float], seconds: list[float], uses: list[int], stages: int
) -> tuple[int, ...]:
    """The cuts that minimise the time of the slowest stage, by dynamic programming over the positions.

    A stage's time is that of its operations and of ``sending`` the values that cross its end. ``uses`` counts the
    operations with parameters before each position: every stage has at least one.
    """
    before = [0.0]
    for each in seconds:
        before.append(before[-1] + each)
    ends, after = [*places, len(seconds)], [*sending, 0.0]
    # slowest[k]: for k + 1 stages up to each end: the slowest stage's time, and the cut before the last stage.
    slowest = [[(before[end] + sent, 0) for end, sent in zip(ends, after, strict=True)]]
    for _ in range(stages - 1):
        last = slowest[-1]
        row = []
        for index, end in enumerate(ends):
            own = before[end] + after[index]
            cuts = [cut for cut in range(index) if uses[ends[cut]] < uses[end]]
            found = [(max(last[cut][0], own - before[ends[cut]]), cut) for cut in cuts]
            row.append(min(found, default=(float("inf"), 0)))
        slowest.append(row)
    chosen, index = [], len(ends) - 1
    for row in reversed(slowest[1:]):
        index = row[index][1]
        chosen.append(ends[index])
    return tuple(reversed(chosen))
