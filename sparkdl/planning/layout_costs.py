"""What each layout of so many ranks takes: seconds of a step, memory, and what is sent. Runs on the driver."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from sparkdl.errors import ConfigError, ModelError
from sparkdl.inputs.tensors import Inputs, count_rows
from sparkdl.layouts import PipelinePlan, exchanged_bytes, part_alone
from sparkdl.planning.cost import Link, Traffic, exchange, together
from sparkdl.planning.memory import RankMemory, memory_of_rank
from sparkdl.planning.pass_seconds import pass_seconds, seconds_of_optimizer
from sparkdl.planning.stage_costs import stages_of_ranks
from sparkdl.settings import RankLayout, Train
from sparkdl.settings.strategies import AllReduceOptions
from sparkdl.tables import aligned
from sparkdl.training.shared_replicas import check_shared_replicas, tried_plan
from sparkdl.training.tasks import Task

__all__ = ["LayoutCost", "LayoutCosts", "costs_of_layouts", "layout_name"]


class LayoutCost(NamedTuple):
    """What a layout takes of the rank that has most to hold, to compute, and to send."""

    rows: int
    """That a step learns from: a batch of each replica."""
    memory: float
    """Bytes in a step, over Python and its libraries."""
    computing: float
    """Of the seconds that a whole replica computes in a step; waiting for other stages counts as well."""
    traffic: Traffic
    """Of a step, with ``allreduce`` in a ring between replicas."""

    def seconds(self, link: Link, whole: float) -> float:
        """Predicted seconds of a step, where a whole replica computes for ``whole`` seconds."""
        return self.computing * whole + link.seconds(self.traffic)


class LayoutCosts(NamedTuple):
    """All layouts of a number of ranks, by what ``cluster.layout`` calls them."""

    possible: dict[str, LayoutCost]
    refused: dict[str, str]
    """With the reasons."""

    def table(self, link: Link, whole: float) -> str:
        """A line for each, with predicted seconds (:meth:`LayoutCost.seconds`)."""
        lines = [["cluster.layout", "ms a step", "rows/s", "MB a rank", "MB sent in a step", "rows of a step"]]
        for name, cost in self.possible.items():
            seconds = cost.seconds(link, whole)
            speed = f"{1e3 * seconds:,.1f}", f"{cost.rows / seconds:,.0f}"
            sizes = f"{cost.memory / 1e6:,.0f}", f"{cost.traffic.bytes / 1e6:,.2f}", f"{cost.rows:,}"
            lines.append([name, *speed, *sizes])
        reasons: dict[str, list[str]] = {}
        for name, reason in self.refused.items():
            reasons.setdefault(reason, []).append(name)
        return "\n".join([aligned(lines), *(f"not {', '.join(names)}: {reason}" for reason, names in reasons.items())])

    def advice(self, link: Link, whole: float, room: float) -> str:
        """Which one is best for ranks that may take so many bytes, in words."""
        fitting = {name: cost for name, cost in self.possible.items() if cost.memory <= room}
        left = f"each rank has {room / 1e6:,.0f} MB left"
        if not fitting:
            name, least = min(self.possible.items(), key=lambda each: each[1].memory)
            return (
                f"{left}, and no layout fits: {name} takes {least.memory / 1e6:,.0f} MB; take more ranks, or fewer rows"
            )
        best = max(fitting, key=lambda name: fitting[name].rows / fitting[name].seconds(link, whole))
        return f"{left}; of the layouts that fit, {best} learns from most rows a second: cluster.layout={best}"


def costs_of_layouts(model: nn.Module, rows: Inputs, settings: Train, task: Task, *, ranks: int) -> LayoutCosts:
    """Try to cut a network in each way that so many ranks can share it; measure how long parts of it take here.

    ``rows`` are some as the network reads them. Replicas exchange by ``allreduce``, whatever the settings say.
    """
    settings = settings.model_copy(update={"strategy": AllReduceOptions()})
    whole = _Whole(model, rows, settings)
    costs = LayoutCosts({}, {})
    for layout in _layouts(ranks):
        try:
            costs.possible[layout_name(layout)] = _cost(whole, task, layout)
        except (ConfigError, ModelError) as reason:
            costs.refused[layout_name(layout)] = str(reason)
    return costs


def layout_name(layout: RankLayout) -> str:
    """What ``cluster.layout`` calls it."""
    axes = {"data": layout.data, "tensor": layout.tensor, "pipeline": layout.pipeline}
    sizes = ", ".join(f"{axis}: {size}" for axis, size in axes.items() if size > 1 or axis == "data")
    return f"{{{sizes}}}"


def _layouts(ranks: int) -> Iterator[RankLayout]:
    yield RankLayout(data=ranks)
    for shared in range(2, ranks + 1):
        if ranks % shared == 0:
            yield RankLayout(data=ranks // shared, tensor=shared)
            yield RankLayout(data=ranks // shared, pipeline=shared)


class _Whole:
    """The network of a whole replica, and how long it takes here."""

    def __init__(self, model: nn.Module, rows: Inputs, settings: Train) -> None:
        self.model, self.rows, self.settings = model, rows, settings
        self.trained = _trained(model)
        self._optimizer = seconds_of_optimizer(settings)
        self._seconds = pass_seconds(model, rows, settings.batch_size) + self._optimizer * self.trained

    def share(self, seconds: float, trained: float) -> float:
        """How many times as long as a step here passes take and the optimizer's step over so many numbers."""
        return (seconds + self._optimizer * trained) / self._seconds


def _trained(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _cost(whole: _Whole, task: Task, layout: RankLayout) -> LayoutCost:
    model, rows, settings = whole.model, whole.rows, whole.settings
    batch, replicas = settings.batch_size, layout.data
    if layout.ranks_of_replica == 1:
        memory = memory_of_rank(model, rows, settings, ranks=replicas, batch=batch)
        return LayoutCost(batch * replicas, memory.total, 1.0, exchange(memory.gradients, replicas))
    check_shared_replicas(settings, task, layout)
    plan = tried_plan(model, rows, layout, batch_size=batch)
    if isinstance(plan, PipelinePlan):
        return _cost_of_stages(whole, plan, replicas)
    part = part_alone(model, plan)
    memory = memory_of_rank(part, rows, settings, ranks=replicas, batch=batch)
    sums = [size * batch / count_rows(rows) for size in exchanged_bytes(model, plan, rows)]
    traffic = together([*(exchange(size, plan.ranks) for size in sums), _of_gradients(memory, replicas)])
    computing = whole.share(pass_seconds(part, rows, batch), _trained(part))
    return LayoutCost(batch * replicas, memory.total, computing, traffic)


def _cost_of_stages(whole: _Whole, plan: PipelinePlan, replicas: int) -> LayoutCost:
    """Ranks compute one part of a batch after another, and wait until the first one has come, and the last one is done.

    With several stages each they wait less: for a part of their own stages (GPipe, section 2.3; Megatron-LM,
    arXiv 2104.04473, section 2.2).
    """
    batch = whole.settings.batch_size
    found = stages_of_ranks(whole.model, whole.rows, whole.settings, plan, replicas=replicas, batch=batch)
    waiting = (plan.ranks - 1) * plan.ranks / plan.stages
    of_part = pass_seconds(whole.model, whole.rows, -(-batch // plan.microbatches))
    return LayoutCost(
        batch * replicas,
        memory=max(each.memory.total for each in found),
        computing=max(
            whole.share((plan.microbatches + waiting) * each.share * of_part, each.trained * whole.trained)
            for each in found
        ),
        traffic=max(
            (together([each.sent, _of_gradients(each.memory, replicas)]) for each in found), key=lambda sent: sent.bytes
        ),
    )


def _of_gradients(memory: RankMemory, replicas: int) -> Traffic:
    """Between the ranks that have the same part of different replicas."""
    return exchange(memory.gradients, replicas) if replicas > 1 else Traffic(0, 0)
