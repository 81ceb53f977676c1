"""Runs that end in the middle of an epoch, what their checkpoints hold, and what has to be equal afterwards."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cloudpickle
import pytest
import torch
from torch.nn import functional

from sparkdl.cluster import Rank
from sparkdl.training.checkpoints.checkpoint import load_manifest, load_shard, load_shared
from sparkdl.training.checkpoints.checkpoint_folder import latest
from sparkdl.training.checkpoints.state import consensus_weights
from sparkdl.training.job import Job, TrainingResult
from sparkdl.training.loop import train_rank
from sparkdl.training.replica import Replica

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # ranks cannot import it


class EndedError(Exception):
    pass


class FailsAt:
    """A loss that fails when it is called for the n-th time with gradients."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if outputs.requires_grad:
            self.left -= 1
            if self.left < 0:
                raise EndedError
        return functional.cross_entropy(outputs, labels)


def interrupt(job: Job, rank: Rank, *, at: int) -> None:
    """Train until the loss fails at this batch on each rank that calls it, and wait until all have written what they
    could. Ranks that only exchange with such a one are told of its end by the connection."""
    with pytest.raises((EndedError, RuntimeError)):
        train_rank(replace(job, settings=job.settings.model_copy(update={"loss": FailsAt(at)})), rank)
    with job.backend.connect() as communicator:
        communicator.barrier()


def continued(job: Job, rank: Rank) -> TrainingResult | None:
    """Train from the last checkpoint in the run's folder on; from the beginning if there is none."""
    return train_rank(replace(job, checkpoint=latest(job.folder)), rank)


def interrupt_after(job: Job, rank: Rank, *, steps: int) -> None:
    """Train until all ranks fail before the same step, whether they have rows for it or not."""
    taken, step = iter(range(steps)), Replica.step

    def some_steps(*given: object, **named: object) -> object:
        if next(taken, None) is None:
            raise EndedError
        return step(*given, **named)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(EndedError):
        patch.setattr(Replica, "step", some_steps)
        train_rank(job, rank)
    with job.backend.connect() as communicator:
        communicator.barrier()


def kill_at_mean(number: int) -> None:
    """Have this process killed right after it has begun to send for a mean, when so many have been before."""
    from sparkdl.collectives import distributed, horovod

    for kind in (horovod.HorovodCommunicator, distributed.TorchCommunicator):
        kind.start_mean = _killing_at(number, kind.start_mean)  # type: ignore[method-assign]


def _killing_at(number: int, start_mean: Callable) -> Callable:
    calls = iter(range(number))

    def start(self: object, tensors: list, *, name: str) -> Callable:
        wait = start_mean(self, tensors, name=name)
        if next(calls, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return wait

    return start


def weights_of(folder: Path | str) -> dict[str, torch.Tensor]:
    """The whole network of a run's last checkpoint."""
    manifest = load_manifest(str(latest(str(folder))))
    return consensus_weights(str(folder), manifest, load_shared(str(folder), manifest))


def states_of(folder: Path | str) -> list[dict]:
    """All that a run's last checkpoint holds: what ranks share, and then what is each rank's own."""
    manifest = load_manifest(str(latest(str(folder))))
    return [load_shared(str(folder), manifest), *(load_shard(str(folder), shard) for shard in manifest.shards)]


def assert_equal(one: object, other: object) -> None:
    """To the last bit."""
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor) and torch.equal(one, other)
    elif isinstance(one, dict):
        assert isinstance(other, dict) and one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert isinstance(other, list | tuple) and len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        assert one == other
