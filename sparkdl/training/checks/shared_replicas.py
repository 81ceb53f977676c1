"""Checks that a recipe and a network can be trained with replicas that several ranks share. Runs on the driver."""

import copy
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import nn

from sparkdl.errors import ConfigError, ModelError
from sparkdl.inputs.tensors import Inputs, answer, like
from sparkdl.layouts import (
    GridPlan,
    NetworkGraph,
    PipelinePlan,
    SharingPlan,
    TensorPlan,
    answer_by_stages,
    computes_by_row,
    cut,
    find_experts,
    find_plan,
    find_stages,
    part_alone,
    trace,
)
from sparkdl.models import MixtureOfExperts, logits_of, tensors_on_disk
from sparkdl.settings import RankLayout, Train
from sparkdl.settings.averaging import Averaging, BFloat16Options, CompressedAveraging, Float16Options
from sparkdl.settings.strategies import AllReduceOptions, DiLoCoOptions
from sparkdl.training.recipes.losses import build_loss
from sparkdl.training.strategies import KINDS
from sparkdl.training.tasks import Task

__all__ = ["check_shared_replicas", "tried_plan"]

TOLERANCE = 1e-3
"""Allowed difference of outputs, relative to the largest: sums over parts are rounded differently."""
WHOLE = {
    "start_from": "weights that it reads are those of a whole network",
    "adapters": "adapters are beside the layers of a whole network",
    "pruning": "pruning chooses among the weights of a whole network",
    "gradient_noise": "gradient_noise is laid under the gradients of a whole network",
    "compile": "compile is for a network that one rank computes",
    "outputs": "outputs are of a network that some rank has as a whole",
}
"""By key of ``train``, why it does not work with parts of a network."""
MICROBATCHES = 4
"""Default for each rank of a pipeline: ranks then are idle for less than a fifth of the time (GPipe, section 2.3)."""
STAGES_OF_RANK = 2
"""Stages of each rank in an interleaved pipeline."""
BY_LAYER = "lars", "lamb"
NUMBER_BY_NUMBER = BFloat16Options, Float16Options
"""Compressions that work on single numbers, so that a part of a layer is compressed as within the whole layer."""


def check_shared_replicas(settings: Train, task: Task, layout: RankLayout) -> None:
    """Raise :class:`ConfigError` for settings that would give another result than with whole replicas."""
    key = _key(layout)
    strategy = settings.strategy
    kind = strategy.model_dump()["kind"]
    off = f"or set {key} to 1"
    needed = KINDS[type(strategy)].needs_whole if isinstance(strategy, Averaging) else "has parameter servers"
    if needed:
        raise ConfigError(f"{key} gives ranks parts of a network, and train.strategy {kind} {needed}; change it, {off}")
    if layout.experts > 1 and not isinstance(strategy, AllReduceOptions):
        raise ConfigError(
            f"with {key} all ranks take each step together, and with train.strategy {kind} they step alone; set it to"
            f" allreduce, {off}"
        )
    if layout.pipeline > 1 and isinstance(strategy, DiLoCoOptions) and strategy.fragments > 1:
        raise ConfigError(
            f"train.strategy.fragments are of all parameters, and {key} gives a rank those of its stages; set it to"
            f" 1, {off}"
        )
    compression = strategy.compression if isinstance(strategy, CompressedAveraging) else None
    if compression and not isinstance(compression, NUMBER_BY_NUMBER):
        raise ConfigError(
            f"train.strategy.compression {compression.model_dump()['kind']} needs whole layers, but {key} gives ranks"
            f" parts of them; set it to bfloat16 or float16, {off}"
        )
    for each in ("shard", "measure_noise"):
        if isinstance(strategy, AllReduceOptions) and getattr(strategy, each):
            raise ConfigError(f"train.strategy.{each} needs ranks that each have a whole replica; leave it out, {off}")
    for each, reason in WHOLE.items():
        if getattr(settings, each):
            raise ConfigError(f"train.{each}: {reason}, and {key} gives ranks parts of one; leave it out, {off}")
    if settings.precision == "float16":
        raise ConfigError(
            "with train.precision float16, a rank skips steps whose gradients overflow, but the other ranks of its"
            f" replica would not; set it to bfloat16 or float32, {off}"
        )
    if (layout.tensor > 1 or layout.experts > 1) and settings.optimizer in BY_LAYER:
        raise ConfigError(
            f"train.optimizer {settings.optimizer} needs the norms of whole layers, but {key} cuts them; choose another"
            f" one, {off}"
        )
    if layout.pipeline > 1 and (build_loss(settings, task).takes_batch or task.name == "ranking"):
        what = "the ranking of a group" if task.name == "ranking" else "a train.loss that takes a batch"
        raise ConfigError(f"{what} needs whole batches, but {key} computes parts of them; change it, {off}")


def _key(layout: RankLayout) -> str:
    """The first setting that makes ranks share a network."""
    sizes = {"tensor": layout.tensor, "pipeline": layout.pipeline, "experts": layout.experts}
    return next(f"cluster.layout.{axis}" for axis, size in sizes.items() if size > 1)


def tried_plan(model: nn.Module, rows: Inputs, layout: RankLayout, *, batch_size: int) -> SharingPlan:
    """How ranks share a network. Unless ranks share experts, the parts are tried: they must have the same outputs.

    Raises :class:`ModelError` for a network that cannot be cut, or whose parts have other outputs.
    """
    if layout.experts > 1:
        return find_experts(model, layout.experts)
    if layout.pipeline > 1 and any(isinstance(each, MixtureOfExperts) for each in model.modules()):
        raise ModelError(
            "cluster.layout.pipeline computes a graph of the network, which does not have the balance losses of its"
            " mixtures of experts; set it to 1, and maybe cluster.layout.experts to 2 or more"
        )
    if layout.tensor == 1:
        staged = _pipeline_plan(model, rows, layout, batch_size)
        _compare(model, rows, layout, lambda: [_Tried(answer_by_stages(model, staged))])
        return staged
    plan = find_plan(model, rows, layout.tensor, layout.plan)
    if layout.pipeline > 1:
        plan = plan._replace(front=())  # all ranks of a stage have the same rows
        staged = _pipeline_plan(part_alone(model, plan), rows, layout, batch_size)
        _compare(model, rows, layout, lambda: _parts_tried(model, rows, plan, staged))
        return GridPlan(plan, staged)
    if plan.front and _front_works(model, like(rows, _differing), plan, layout):
        return plan
    plan = plan._replace(front=())
    _compare(model, rows, layout, lambda: _parts_tried(model, rows, plan))
    return plan


def _front_works(model: nn.Module, rows: Inputs, plan: TensorPlan, layout: RankLayout) -> bool:
    """Whether ranks can compute the front for different rows."""
    if not computes_by_row(model, rows, plan.blocks[0].columns[0]):
        return False
    try:
        _compare(model, rows, layout, lambda: _parts_tried(model, rows, plan), front=plan.front)
    except ModelError:  # for example, the code takes the number of rows that the front gets for that of outputs
        return False
    return True


class _Tried(NamedTuple):
    """The result of a network, or of one of the ranks that share it."""

    answers: torch.Tensor
    gradients: torch.Tensor = torch.zeros(1)
    """The gradients of the front's parameters, concatenated."""


@torch.no_grad()
def _compare(
    model: nn.Module, rows: Inputs, layout: RankLayout, try_parts: Callable[[], list[_Tried]], front: Sequence[str] = ()
) -> None:
    """Raise :class:`ModelError` unless all ranks have the whole network's outputs, and on average its gradients."""
    expected = _tried(model.eval(), rows, front)
    found = try_parts()
    model.train()
    mean = torch.stack([each.gradients for each in found]).mean(dim=0)
    for ours, theirs in [*((each.answers, expected.answers) for each in found), (mean, expected.gradients)]:
        largest = float(theirs.abs().max())
        apart = float((ours - theirs).abs().max()) if ours.shape == theirs.shape else math.inf
        if apart > TOLERANCE * largest:
            raise ModelError(
                f"{_key(layout)}: outputs of a replica on several ranks would differ from those of the whole network"
                f" by up to {apart:.2g}, and outputs are at most {largest:.2g}; set it to 1"
            )


def _tried(network: nn.Module, rows: Inputs, front: Sequence[str]) -> _Tried:
    parameters = [each for name, each in network.named_parameters() if name in front and each.requires_grad]
    if not parameters:
        return _Tried(logits_of(answer(network, rows)))
    with torch.enable_grad():
        answers = logits_of(answer(network, rows))
        gradients = torch.autograd.grad(answers.square().sum(), parameters, materialize_grads=True)
    return _Tried(answers.detach(), torch.cat([each.flatten() for each in gradients]))


def _differing(rows: torch.Tensor) -> torch.Tensor:
    """Random numbers in place of zeros, so that rows differ; each row's ids are rotated by another number of places."""
    generator = torch.Generator().manual_seed(0)
    if rows.is_floating_point():
        return torch.rand(rows.shape, generator=generator, dtype=rows.dtype)
    if rows.dtype == torch.uint8:
        return torch.randint(256, rows.shape, generator=generator, dtype=rows.dtype)
    if rows.dim() == 1:
        return rows
    return torch.stack([row.roll(place, -1) for place, row in enumerate(rows)])


def _pipeline_plan(model: nn.Module, rows: Inputs, layout: RankLayout, batch_size: int) -> PipelinePlan:
    stages = layout.pipeline * (STAGES_OF_RANK if layout.schedule == "interleaved" else 1)
    parts = layout.microbatches or MICROBATCHES * layout.pipeline
    cuts = find_stages(model, rows, stages, count=max(1, batch_size // parts))
    return PipelinePlan(layout.pipeline, cuts, parts, layout.schedule, rows)


def _parts_tried(model: nn.Module, rows: Inputs, plan: TensorPlan, staged: PipelinePlan | None = None) -> list[_Tried]:
    """The results of all ranks, stage after stage if there are several; the ranks are threads here.

    Raises :class:`ModelError` if the network fails on parts of its layers.
    """
    together = _Threads(plan.ranks)
    try:
        trials = [_Trial.of(model, plan, staged, together.of(rank)) for rank in range(plan.ranks)]
        with ThreadPoolExecutor(plan.ranks) as pool:
            found = [pool.submit(each.run, rows) for each in trials]
            failed = [each.exception() for each in found]
        if reason := next(
            (each for each in failed if each and not isinstance(each, threading.BrokenBarrierError)), None
        ):
            raise reason
    except Exception as reason:
        raise ModelError(
            "cluster.layout.tensor: the network's code fails on parts of its layers; if it reshapes values to a fixed"
            f" number of heads, write -1 in place of that number. {type(reason).__name__}: {reason}"
        ) from reason
    return [each.result() for each in found]


class _Trial(NamedTuple):
    """One of the ranks that compute a network together; tensors that are not cut are the network's own."""

    part: nn.Module
    ranks: "_Thread"
    front: Sequence[str]
    staged: PipelinePlan | None
    graph: NetworkGraph | None
    """The graph of ``part`` if there are stages."""

    @classmethod
    def of(cls, model: nn.Module, plan: TensorPlan, staged: PipelinePlan | None, ranks: "_Thread") -> "_Trial":
        own: dict[int, Any] = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
        with torch.no_grad():
            part = copy.deepcopy(model, own)
            with tensors_on_disk():  # the driver may lack memory for all parts
                cut(part, plan, ranks)
        return cls(part, ranks, plan.front, staged, trace(part, staged.rows) if staged else None)

    def run(self, rows: Inputs) -> _Tried:
        """The result of this rank; all ranks run at the same time."""
        try:
            with torch.no_grad():
                if self.staged:
                    return _Tried(answer_by_stages(self.part, self.staged, graph=self.graph, together=self.ranks))
                return _tried(self.part, rows, self.front)
        except BaseException:
            self.ranks.abort()
            raise


class _Threads:
    """The ranks of a replica, as threads of the driver."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count)
        self.given: list[torch.Tensor | None] = [None] * count

    def of(self, rank: int) -> "_Thread":
        return _Thread(rank, self)


class _Thread:
    """The communicator of one thread, with the methods that :func:`sparkdl.layouts.cut` needs."""

    def __init__(self, rank: int, all_of_them: _Threads) -> None:
        self.rank, self._all = rank, all_of_them

    def all_reduce(self, tensor: torch.Tensor, *, op: Any = "sum") -> torch.Tensor:
        return torch.stack(self.all_gather(tensor)).sum(dim=0)

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        self._all.given[self.rank] = tensor
        self._all.barrier.wait()
        gathered = [each.clone() for each in self._all.given if each is not None]
        self._all.barrier.wait()
        return gathered

    def scatter_sum(self, own: torch.Tensor, whole: torch.Tensor) -> None:
        own.copy_(self.all_reduce(whole).chunk(len(self._all.given))[self.rank])

    def abort(self) -> None:
        self._all.barrier.abort()
