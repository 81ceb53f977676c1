"""What each rank of a pipeline takes in a step: memory and messages, computed, and seconds of its stages, measured."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

import torch
from torch import nn

from sparkdl.inputs.tensors import Inputs, count_rows, repeated
from sparkdl.layouts import (
    Alone,
    GraphStage,
    NetworkGraph,
    PipelinePlan,
    bytes_of,
    input_names,
    is_entered,
    is_left,
    trace,
)
from sparkdl.planning.cores import Cores
from sparkdl.planning.cost import Traffic, exchange, together
from sparkdl.planning.memory import COPIED_BYTES, RankMemory, numbers_kept, saved_bytes
from sparkdl.planning.pass_seconds import shortest
from sparkdl.settings import Train

__all__ = ["StagesOfRank", "seconds_of_turns", "stages_of_ranks"]


class StagesOfRank(NamedTuple):
    """What a rank of a pipeline has, and does in a step."""

    memory: RankMemory
    sent: Traffic
    """To its neighbours: values of each part of a batch, and gradients of those that it was given."""
    trained: int
    """Numbers that it trains."""
    seconds: float
    """Of its stages' forward passes and back-propagation, for one part of a batch."""
    sums: Traffic
    """With the ranks that compute the same stages, for one part of a batch."""


def stages_of_ranks(
    model: nn.Module, rows: Inputs, settings: Train, plan: PipelinePlan, *, tensor: int = 1, replicas: int, batch: int
) -> list[StagesOfRank]:
    """By rank of a replica, for a step over ``batch`` rows of it. Runs on the driver.

    ``rows`` are some as the network reads them. The network may be the part of one that each of ``tensor`` ranks has.
    """
    graph = trace(model, rows)
    bounds = plan.bounds(len(graph.operations))
    parameters = dict(model.named_parameters(remove_duplicate=False))
    tensors = {**parameters, **dict(model.named_buffers(remove_duplicate=False))}
    count = -(-batch // plan.microbatches)
    share = count / count_rows(rows)
    of_part = repeated(rows, count)
    parts = list(of_part.values()) if isinstance(of_part, dict) else [of_part]
    inputs = dict(zip(input_names(graph), parts, strict=True))
    given: tuple[Any, ...] = ()
    saved, received, seconds, summed = [], [], [], []
    alone = Alone(tensor)
    with torch.random.fork_rng(devices=[]):
        for begin, end in bounds:
            stage = GraphStage(graph, begin, end, lambda: tensors, nullcontext, together=alone, training=True)
            given = tuple(each.detach().requires_grad_() for each in given)
            received.append(sum(each.nbytes for each in given))
            run = partial(stage, *given, **inputs)
            found, kept = saved_bytes(run, [*tensors.values(), *given])  # what is received has room already
            saved.append(kept)
            names = graph.used_parameters(begin, end)
            learning = [parameters[name] for name in names if parameters[name].requires_grad]
            seconds.append(shortest(partial(_pass, run, [*learning, *given])))
            summed.append(_sums(graph, begin, end, tensor, share))
            given = found if isinstance(found, tuple) else (found,)
    moments = numbers_kept(settings)
    ranks = []
    for rank in range(plan.ranks):
        own = plan.stages_of(rank)
        names = set().union(*(graph.used_parameters(*bounds[stage]) for stage in own))
        weights = float(sum(parameters[name].nbytes for name in names))
        learning = [parameters[name] for name in names if parameters[name].requires_grad]
        trained = float(sum(parameter.nbytes for parameter in learning))
        activations = _kept_passes(plan, rank) * sum(saved[stage] for stage in own) / len(own)
        # Room for what comes from the stage before, and for the gradients of what goes to the next, of each part.
        crossed = [place for stage in own for place in (stage, stage + 1) if 0 < place < plan.stages]
        coming = sum(received[place] for place in crossed)
        copied = 0.0 if replicas == 1 else float(min(COPIED_BYTES, 2 * trained))
        travelling = plan.microbatches * coming + copied
        memory = RankMemory(weights, trained, moments * trained, travelling, activations)
        sent = Traffic(plan.microbatches * len(crossed), plan.microbatches * coming)
        taken = sum(seconds[stage] for stage in own)
        sums = together(summed[stage] for stage in own)
        ranks.append(StagesOfRank(memory, sent, sum(each.numel() for each in learning), taken, sums))
    return ranks


def seconds_of_turns(of_ranks: Sequence[float], parts: int, waiting: float, cores: Cores) -> float:
    """How long ranks compute and wait in a step, in seconds of a driver that is as slow as a rank among others.

    ``of_ranks`` are the seconds that each takes for one of the parts of a batch, and they wait for as long as for
    ``waiting`` parts. Ranks that share cores leave theirs to others while they wait: a step then takes as long as the
    slowest rank would with cores of its own, or as long as the work of all ranks takes on the cores that there are.
    """
    return max((parts + waiting) * max(of_ranks) / cores.slowdown, parts * mean(of_ranks))


def _pass(run: Callable[[], Any], learning: Sequence[torch.Tensor]) -> None:
    """A forward pass of a stage, and its back-propagation."""
    found = run()
    answers = [each for each in (found if isinstance(found, tuple) else (found,)) if each.requires_grad]
    if answers and learning:
        torch.autograd.grad(answers, learning, [torch.ones_like(each) for each in answers], allow_unused=True)


def _sums(graph: NetworkGraph, begin: int, end: int, ranks: int, share: float) -> Traffic:
    """What so many ranks add up in some operations and in their back-propagation, of this share of the rows."""
    found = []
    for node in graph.operations[begin:end]:
        with_gradient = is_entered(node) and node in graph.learned
        if is_left(node) or with_gradient:
            found.append(exchange(share * bytes_of(node), ranks))
    return together(found)


def _kept_passes(plan: PipelinePlan, rank: int) -> int:
    """Of how many forward passes of a stage a rank has the activations at most."""
    own = len(plan.stages_of(rank))
    all_of_them = plan.microbatches * own
    if plan.schedule == "gpipe":
        return all_of_them
    if plan.schedule == "1f1b":
        return min(plan.ranks - rank, all_of_them)
    return min((own - 1) * plan.ranks + 2 * (plan.ranks - 1 - rank) + 1, all_of_them)
