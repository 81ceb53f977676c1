"""Tensor plans that leave a network's first blocks whole, so that ranks compute these for different rows.

Each block is cut by rows or by units, whichever exchanges less: many activations and few weights are cut by rows, few
activations and many weights by units. Tofu (Wang et al., EuroSys 2019, arXiv 1807.08887) searches for the cut of each
operator; here blocks are cut by rows up to some block and by units from there on, so that values are gathered only
once. Runs on the driver.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn

from sparkdl.inputs.tensors import Inputs, answer, count_rows
from sparkdl.layouts import CutBlock, TensorPlan
from sparkdl.models import in_mode
from sparkdl.planning.cost import Traffic, exchange, gathered, together
from sparkdl.planning.links import Links
from sparkdl.settings import RankLayout
from sparkdl.settings.cluster import CutStyle

__all__ = ["plans_with_whole_blocks"]

MOST_PLANS = 3
"""How many are worth a try, as a network's code may not allow the fastest one."""


class _Edges(NamedTuple):
    """Bytes of a row's values at the edges of a block."""

    entering: float
    leaving: float


class _Gradients(NamedTuple):
    """Bytes of the gradients that a rank averages with others."""

    of_front: float
    """With all ranks of the run."""
    of_part: float
    """With the ranks that have the same part of a replica."""


def plans_with_whole_blocks(
    model: nn.Module, rows: Inputs, plan: TensorPlan, layout: RankLayout, *, batch: int, batches: int, links: Links
) -> list[dict[str, CutStyle]]:
    """Plans as ``cluster.layout.plan`` has them that exchange faster than ``plan``, which cuts all blocks by units.

    In a step each replica computes ``batches`` batches of ``batch`` rows. The fastest plan comes first. There are none
    where an embedding is cut, too, as it comes before the blocks.
    """
    blocks = plan.blocks
    if plan.embeddings or len(blocks) < 2:
        return []
    edges = _edges(model, rows, blocks)
    seconds = []
    for first in range(len(blocks)):
        front = first > 0 or bool(plan.front)
        gradients = _gradients(model, blocks[first:], plan.ranks, front=front)
        traffic = _in_replica(edges[first:], plan.ranks, batch, front=front).times(batches)
        averaging = links.between_replicas(gradients.of_part, layout.data, ranks_of_replica=plan.ranks)
        averaging += links.between_replicas(gradients.of_front, layout.data * plan.ranks)
        seconds.append(links.in_replica(traffic, plan.ranks) + averaging)
    faster = sorted((each, first) for first, each in enumerate(seconds) if each < seconds[0])
    return [_styles(blocks[first:]) for _, first in faster[:MOST_PLANS]]


def _in_replica(edges: Sequence[_Edges], ranks: int, batch: int, *, front: bool) -> Traffic:
    """What the ranks of a replica exchange for a batch.

    The sums of what blocks give and of the gradients of what they are given; the values of a front, and their
    gradients, of which each rank has its share.
    """
    sums = [exchange(batch * size, ranks) for each in edges for size in (each.leaving, each.entering)]
    if front:
        share = exchange(batch * edges[0].entering / ranks, ranks, gathered)
        sums = [*sums[:1], share, share, *sums[2:]]
    return together(sums)


def _gradients(model: nn.Module, blocks: Sequence[CutBlock], ranks: int, *, front: bool) -> _Gradients:
    cut = {name for block in blocks for name in block.layers}
    of_front = of_part = 0.0
    for name, parameter in model.named_parameters():
        layer = name.rpartition(".")[0]
        front = front and layer not in cut
        size = parameter.nbytes if parameter.requires_grad else 0
        if front:
            of_front += size
        else:
            of_part += size / ranks if layer in cut else size
    return _Gradients(of_front, of_part)


def _edges(model: nn.Module, rows: Inputs, blocks: Sequence[CutBlock]) -> list[_Edges]:
    """Those of each block, from a pass over some rows."""
    found: dict[nn.Module, tuple[int, int]] = {}

    def look(layer: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], values: torch.Tensor) -> None:
        found[layer] = next(iter((*args, *kwargs.values()))).nbytes, values.nbytes

    ends = [(model.get_submodule(block.columns[0]), model.get_submodule(block.row)) for block in blocks]
    with ExitStack() as hooks, in_mode(model, training=True), torch.no_grad(), torch.random.fork_rng(devices=[]):
        for layer in {each for pair in ends for each in pair}:
            hooks.callback(layer.register_forward_hook(look, with_kwargs=True).remove)
        answer(model, rows)
    count = count_rows(rows)
    return [_Edges(found[first][0] / count, found[last][1] / count) for first, last in ends]


def _styles(blocks: Sequence[CutBlock]) -> dict[str, CutStyle]:
    styles: dict[str, CutStyle] = {}
    for block in blocks:
        styles |= {**dict.fromkeys(block.columns, "colwise"), block.row: "rowwise"}  # type: ignore[dict-item]
    return styles
