"""Which layouts so many ranks can have: the memory of a rank and what it sends in a step. Runs on the driver."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from sparkdl.errors import ConfigError, ModelError
from sparkdl.inputs.tensors import Inputs, count_rows
from sparkdl.layouts import PipelinePlan, exchanged_bytes, part_alone
from sparkdl.planning.cost import ring
from sparkdl.planning.memory import memory_of_rank
from sparkdl.planning.stage_memory import stages_of_ranks
from sparkdl.settings import RankLayout, Train
from sparkdl.settings.strategies import AllReduceOptions
from sparkdl.tables import aligned
from sparkdl.training.shared_replicas import check_shared_replicas, tried_plan
from sparkdl.training.tasks import Task

__all__ = ["LayoutCost", "LayoutCosts", "costs_of_layouts"]


class LayoutCost(NamedTuple):
    """What a layout takes of the rank that has most to hold, and of the one that has most to send."""

    rows: int
    """That a step learns from: a batch of each replica."""
    memory: float
    """Bytes in a step, over Python and its libraries."""
    sent: float
    """Bytes in a step, with ``allreduce`` in a ring between replicas."""


class LayoutCosts(NamedTuple):
    """All layouts of a number of ranks, by what ``cluster.layout`` calls them."""

    possible: dict[str, LayoutCost]
    refused: dict[str, str]
    """With the reasons."""

    def __str__(self) -> str:
        lines = [["cluster.layout", "MB a rank", "MB sent in a step", "rows of a step"]]
        lines += [
            [name, f"{cost.memory / 1e6:,.0f}", f"{cost.sent / 1e6:,.2f}", f"{cost.rows:,}"]
            for name, cost in self.possible.items()
        ]
        reasons: dict[str, list[str]] = {}
        for name, reason in self.refused.items():
            reasons.setdefault(reason, []).append(name)
        return "\n".join([aligned(lines), *(f"not {', '.join(names)}: {reason}" for reason, names in reasons.items())])


def costs_of_layouts(model: nn.Module, rows: Inputs, settings: Train, task: Task, *, ranks: int) -> LayoutCosts:
    """Try to cut a network in each way that so many ranks can share it, and compute what each takes.

    ``rows`` are some as the network reads them. Replicas exchange by ``allreduce``, whatever the settings say.
    """
    settings = settings.model_copy(update={"strategy": AllReduceOptions()})
    costs = LayoutCosts({}, {})
    for layout in _layouts(ranks):
        axes = {"data": layout.data, "tensor": layout.tensor, "pipeline": layout.pipeline}
        sizes = ", ".join(f"{axis}: {size}" for axis, size in axes.items() if size > 1 or axis == "data")
        try:
            costs.possible[f"{{{sizes}}}"] = _cost(model, rows, settings, task, layout)
        except (ConfigError, ModelError) as reason:
            costs.refused[f"{{{sizes}}}"] = str(reason)
    return costs


def _layouts(ranks: int) -> Iterator[RankLayout]:
    yield RankLayout(data=ranks)
    for shared in range(2, ranks + 1):
        if ranks % shared == 0:
            yield RankLayout(data=ranks // shared, tensor=shared)
            yield RankLayout(data=ranks // shared, pipeline=shared)


def _cost(model: nn.Module, rows: Inputs, settings: Train, task: Task, layout: RankLayout) -> LayoutCost:
    batch, replicas = settings.batch_size, layout.data
    if layout.ranks_of_replica == 1:
        whole = memory_of_rank(model, rows, settings, ranks=replicas, batch=batch)
        return LayoutCost(batch * replicas, whole.total, ring(whole.gradients, replicas).bytes)
    check_shared_replicas(settings, task, layout)
    plan = tried_plan(model, rows, layout, batch_size=batch)
    if isinstance(plan, PipelinePlan):
        found = stages_of_ranks(model, rows, settings, plan, replicas=replicas, batch=batch)
        memory = max(each.memory.total for each in found)
        sent = max(each.sent + ring(each.memory.gradients, replicas).bytes for each in found)
    else:
        part = memory_of_rank(part_alone(model, plan), rows, settings, ranks=replicas, batch=batch)
        inside = exchanged_bytes(model, plan, rows) * batch / count_rows(rows)
        memory = part.total
        sent = ring(inside, plan.ranks).bytes + ring(part.gradients, replicas).bytes
    return LayoutCost(batch * replicas, memory, sent)
