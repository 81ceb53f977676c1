"""What a turn of a pipeline takes apart from the passes of its stages: messages, and the code of the schedule.

Runs on ranks.
"""

import time
from contextlib import nullcontext
from statistics import median

import torch
from torch import nn

from sparkdl.collectives import Communicator, TorchCommunicator
from sparkdl.layouts import PipelinePlan, has_pipelines

__all__ = ["turn_seconds"]

WIDTH = 8
"""Neurons of a stage, whose passes take next to no time."""
MICROBATCHES, REPEATS = 4, 5


def turn_seconds(world: Communicator, device: torch.device) -> float:
    """Seconds of a microbatch in a pipeline of all ranks, whose stages compute next to nothing.

    All ranks work at the same time, as in a training step. 0 where there are no pipelines: with Horovod, or an early
    PyTorch. All ranks call it together.
    """
    if not isinstance(world, TorchCommunicator) or not has_pipelines():
        return 0.0
    from sparkdl.layouts.pipeline_parallel import PipelineParallel  # torch.distributed.pipelining takes time to load

    stages = world.size
    network = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(stages))).to(device)
    rows = torch.zeros(MICROBATCHES * stages, WIDTH, device=device)
    plan = PipelinePlan(stages, tuple(range(1, stages)), len(rows), "1f1b", rows[:2])
    pipeline = PipelineParallel(network, plan, world, nullcontext)
    seconds = []
    for _ in range(1 + REPEATS):
        world.barrier()
        started = time.perf_counter()
        pipeline.back_propagate(rows, lambda logits, _: logits.sum())
        seconds.append(time.perf_counter() - started)
    slowest = torch.stack(world.all_gather(torch.tensor(seconds[1:]))).amax(dim=0)
    return float(median(slowest.tolist())) / (plan.microbatches + stages - 1)
