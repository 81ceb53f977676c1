"""What each layout of so many ranks takes: computing, memory, and what is sent. Runs on the driver."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import nn
from tqdm.auto import tqdm

from sparkdl.cluster import limited_threads
from sparkdl.errors import ConfigError, ModelError
from sparkdl.inputs.tensors import Inputs, repeated
from sparkdl.layouts import ExpertPlan, GridPlan, PipelinePlan, SharingPlan, TensorPlan, exchanged_bytes, part_alone
from sparkdl.models import Experts
from sparkdl.planning.cores import Cores
from sparkdl.planning.cost import Traffic, exchange, gathered, together
from sparkdl.planning.expert_costs import bytes_of_experts, bytes_of_rows, memory_with_experts
from sparkdl.planning.layout_names import layout_name
from sparkdl.planning.leading_blocks import plans_with_whole_blocks
from sparkdl.planning.links import Links
from sparkdl.planning.memory import memory_of_rank
from sparkdl.planning.pass_seconds import pass_seconds, seconds_of_optimizer
from sparkdl.planning.stage_costs import seconds_of_turns, stages_of_ranks
from sparkdl.settings import RankLayout, Train
from sparkdl.settings.strategies import AllReduceOptions
from sparkdl.training.checks.shared_replicas import check_shared_replicas, tried_plan
from sparkdl.training.recipes.batching import Batching, batching
from sparkdl.training.tasks import Task

__all__ = ["LayoutCost", "LayoutCosts", "costs_of_layouts"]


class LayoutCost(NamedTuple):
    """What a layout takes of the rank that has most to hold, to compute, and to send."""

    layout: RankLayout
    batch: int
    """Rows of a batch of one replica, or of each rank of those that share experts."""
    memory: float
    """Bytes in a step, over Python and its libraries."""
    computing: float
    """In seconds that a whole replica computes in a step while all ranks do; waiting for other stages counts, too."""
    shared: Traffic
    """Of a step, with the other ranks that the network lies among."""
    gradients: float
    """Bytes of those gradients that are averaged, in a ring, among the ranks that have the same part."""
    common_gradients: float = 0.0
    """Bytes of those that all ranks average: of a front, and of what is beside experts."""
    stage_sums: Traffic = Traffic(0, 0)
    """Of a step, with the ranks that compute the same stage of a pipeline."""
    exposed: float = 1.0
    """The share of what is sent to ranks of the replica that ranks wait for; the rest travels while they compute."""
    turns: float = 0.0
    """Seconds of a step that a pipeline takes besides computing and sending bytes: its schedule, and the start of
    messages."""
    batches: int = 1
    """That a replica accumulates in a step: a step learns from as many rows as with whole replicas."""

    def on(self, ranks: int) -> "LayoutCost":
        """The same on so many ranks, which have more replicas or fewer."""
        data = ranks // self.layout.sharing
        return self._replace(layout=self.layout.model_copy(update={"data": data}))

    @property
    def rows(self) -> int:
        """That a step learns from."""
        return self.batch * self.batches * self.layout.replicas

    @property
    def traffic(self) -> Traffic:
        """Of a step, all together."""
        ranks = self.layout.data * self.layout.sharing
        averaged = exchange(self.gradients, self.layout.data), exchange(self.common_gradients, ranks)
        return together([self.shared, self.stage_sums, *averaged])

    def seconds(self, links: Links, whole: float) -> float:
        """Predicted seconds of a step, where a whole replica computes for ``whole`` seconds."""
        ranks = self.layout.sharing
        averaging = links.between_replicas(self.gradients, self.layout.data, ranks_of_replica=ranks)
        averaging += links.between_replicas(self.common_gradients, self.layout.data * ranks)
        sharing = links.in_replica(self.shared, ranks, at_a_time=self._columns)
        computing = self.computing * whole + self.turns + links.in_replica(self.stage_sums, self.layout.tensor)
        hidden = (1 - self.exposed) * sharing
        return max(computing, hidden) + self.exposed * sharing + averaging

    @property
    def _columns(self) -> int:
        """How many ranks of a stage send to the next one."""
        return self.layout.tensor if self.layout.pipeline > 1 else 1


class LayoutCosts(NamedTuple):
    """All layouts of a number of ranks, by what ``cluster.layout`` calls them."""

    possible: dict[str, LayoutCost]
    refused: dict[str, str]
    """With the reasons."""
    plans: dict[str, SharingPlan | None]
    """How ranks share a replica; None where each has a whole one."""
    seconds: float
    """What a whole replica computes in a step on the driver, which does nothing else."""


def costs_of_layouts(
    model: nn.Module, rows: Inputs, settings: Train, task: Task, *, ranks: int, cores: Cores, links: Links
) -> LayoutCosts:
    """Try to cut a network in each way that so many ranks can share it; measure how long parts of it take here.

    ``rows`` are some as the network reads them, and the driver computes with as many threads as a rank that has such
    ``cores``. Over ``links`` it may be faster to leave the first blocks of layers whole; there is a layout with such a
    plan, too, if so. Replicas exchange by ``allreduce``, whatever the settings say.
    """
    settings = settings.model_copy(update={"strategy": AllReduceOptions()})
    axes = ["tensor", "pipeline"]
    axes += ["experts"] if any(isinstance(each, Experts) for each in model.modules()) else []
    with limited_threads(cores.threads):
        whole = _Whole(model, rows, settings, cores)
        costs = LayoutCosts({}, {}, {}, whole.seconds)
        for layout in tqdm(list(_layouts(ranks, axes)), desc="layouts", unit="layout", leave=False, disable=None):
            name = layout_name(layout)
            try:
                costs.plans[name] = _plan(whole, task, layout)
                costs.possible[name] = _cost(whole, layout, costs.plans[name])
            except (ConfigError, ModelError) as reason:
                costs.refused[name] = str(reason)
                continue
            if found := _with_whole_blocks(whole, task, layout, costs.plans[name], links):
                name = layout_name(found[0])
                costs.plans[name], costs.possible[name] = found[1], _cost(whole, *found)
    return costs


def _layouts(ranks: int, axes: Sequence[str]) -> Iterator[RankLayout]:
    yield RankLayout(data=ranks)
    for shared in range(2, ranks + 1):
        if ranks % shared:
            continue
        whole = RankLayout(data=ranks // shared)
        yield from (whole.model_copy(update={axis: shared}) for axis in axes)
        for stages in range(2, shared // 2 + 1):
            if shared % stages == 0:
                yield whole.model_copy(update={"tensor": shared // stages, "pipeline": stages})


class _Whole:
    """The network of a whole replica, and how long it takes here."""

    def __init__(self, model: nn.Module, rows: Inputs, settings: Train, cores: Cores) -> None:
        self.model, self.rows, self.settings, self.cores = model, rows, settings, cores
        self.trained = _trained(model)
        self._optimizer = seconds_of_optimizer(settings)
        self.seconds_of_passes = pass_seconds(model, rows, settings.batch_size)
        self.seconds = settings.accumulation * self.seconds_of_passes + self._optimizer * self.trained

    def share(self, seconds: float, batches: int, trained: float) -> float:
        """How many times as long as a step here so many passes take and the optimizer's step over so many numbers."""
        return (batches * seconds + self._optimizer * trained) / self.seconds


def _trained(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _plan(whole: _Whole, task: Task, layout: RankLayout) -> SharingPlan | None:
    """How ranks share a replica. Raises :class:`ConfigError` or :class:`ModelError` where they cannot."""
    if not layout.has_parts:
        return None
    check_shared_replicas(whole.settings, task, layout)
    return tried_plan(whole.model, whole.rows, layout, batch_size=_batching(whole, layout).batch_size)


def _with_whole_blocks(
    whole: _Whole, task: Task, layout: RankLayout, plan: SharingPlan | None, links: Links
) -> tuple[RankLayout, TensorPlan] | None:
    """The layout with a plan that leaves the first blocks whole, where that exchanges faster and is possible."""
    if not isinstance(plan, TensorPlan):
        return None
    shape = _batching(whole, layout)
    plans = plans_with_whole_blocks(
        *(whole.model, whole.rows, plan, layout), batch=shape.batch_size, batches=shape.accumulation, links=links
    )
    for styles in plans:
        own = layout.model_copy(update={"plan": styles})
        try:
            found = _plan(whole, task, own)
        except ModelError:
            continue
        if isinstance(found, TensorPlan) and found.front:
            return own, found
    return None


def _batching(whole: _Whole, layout: RankLayout) -> Batching:
    return batching(whole.settings, size=layout.replicas, reference=layout.data * layout.sharing)


def _cost(whole: _Whole, layout: RankLayout, plan: SharingPlan | None) -> LayoutCost:
    model, rows, settings = whole.model, whole.rows, whole.settings
    shape = _batching(whole, layout)
    batch, batches = shape.batch_size, shape.accumulation
    if plan is None:
        memory = memory_of_rank(model, rows, settings, ranks=layout.data, batch=batch)
        return LayoutCost(layout, batch, memory.total, 1.0, Traffic(0, 0), memory.gradients, batches=batches)
    if isinstance(plan, PipelinePlan):
        return _cost_of_stages(whole, model, plan, layout)
    if isinstance(plan, GridPlan):
        return _cost_of_stages(whole, part_alone(model, plan.tensor), plan.pipeline, layout)
    if isinstance(plan, ExpertPlan):
        return _cost_of_experts(whole, layout)
    part, of_batch = part_alone(model, plan), repeated(rows, batch)  # a front sees a share of them
    memory = memory_of_rank(part, of_batch, settings, ranks=layout.data, batch=batch)
    found = exchanged_bytes(model, plan, of_batch)
    gathers = [exchange(size, plan.ranks, gathered) for size in found.shares]
    parameters = dict(model.named_parameters())
    front = sum(parameters[name].nbytes for name in plan.front if parameters[name].requires_grad)
    return LayoutCost(
        layout,
        batch,
        memory=memory.total,
        computing=whole.share(pass_seconds(part, rows, batch), batches, _trained(part)),
        shared=together([*(exchange(size, plan.ranks) for size in found.sums), *gathers]).times(batches),
        gradients=memory.gradients - front,
        common_gradients=front,
        batches=batches,
    )


def _cost_of_stages(whole: _Whole, part: nn.Module, plan: PipelinePlan, layout: RankLayout) -> LayoutCost:
    """What it takes to have a network in stages, or a part of one whose blocks are cut.

    Ranks compute one part of a batch after another, and wait until the first one has come, and the last one is done.
    With several stages each they wait less: for a part of their own stages (GPipe, section 2.3; Megatron-LM,
    arXiv 2104.04473, section 2.2). Messages travel while ranks compute, but for those of the parts that are waited for.
    Where ranks share cores, messages take some of them. How long they take to start is measured with the schedule.
    """
    shape = _batching(whole, layout)
    batch, batches = shape.batch_size, shape.accumulation
    rows, settings = whole.rows, whole.settings
    found = stages_of_ranks(part, rows, settings, plan, tensor=layout.tensor, replicas=layout.data, batch=batch)
    waiting = (plan.ranks - 1) * plan.ranks / plan.stages
    turns = plan.microbatches + waiting
    sums = max((each.sums for each in found), key=lambda sums: sums.bytes)
    seconds = seconds_of_turns([each.seconds for each in found], plan.microbatches, waiting, whole.cores)
    return LayoutCost(
        layout,
        batch,
        memory=max(each.memory.total for each in found),
        computing=whole.share(seconds, batches, max(each.trained for each in found)),
        shared=max((each.sent for each in found), key=lambda sent: sent.bytes).times(batches)._replace(messages=0),
        gradients=max(each.memory.gradients for each in found),
        stage_sums=sums.times(batches * turns),
        turns=batches * turns * whole.cores.turn,
        exposed=1 - max(0.0, 1 - waiting / plan.microbatches) / whole.cores.slowdown,
        batches=batches,
    )


def _cost_of_experts(whole: _Whole, layout: RankLayout) -> LayoutCost:
    """Ranks compute as much as with whole replicas: for rows of all, by the experts that they have."""
    shape = _batching(whole, layout)
    model, settings, batch, batches = whole.model, whole.settings, shape.batch_size, shape.accumulation
    memory = memory_of_rank(model, whole.rows, settings, ranks=layout.replicas, batch=batch)
    experts = bytes_of_experts(model, layout.experts)
    given = bytes_of_rows(model, repeated(whole.rows, batch))
    others = layout.experts - 1
    # There and back, in the forward pass and in the back-propagation.
    rows = Traffic(4 * others * len(given), 4 * sum(given) * others / layout.experts)
    return LayoutCost(
        layout,
        batch,
        memory=memory_with_experts(memory, experts).total,
        computing=whole.share(whole.seconds_of_passes, batches, whole.trained * experts.kept(memory.gradients)),
        shared=rows.times(batches),
        gradients=experts.own,
        common_gradients=memory.gradients - experts.all,
        batches=batches,
    )
