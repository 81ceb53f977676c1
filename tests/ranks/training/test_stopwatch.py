"""Where the time of real ranks goes."""

import time
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparkdl.cluster import run_local
from sparkdl.collectives import Backend
from sparkdl.data import Dataset
from sparkdl.errors import RankError
from sparkdl.settings import Train
from sparkdl.training.job import Job
from sparkdl.training.loop import train_rank
from sparkdl.training.reports.stopwatch import TRACED_STEPS, RankTimes

STEPS = 14  # of an epoch: 106 rows, two ranks, batches of four
SLOW = 0.02  # seconds that rank 0 takes longer for a step
Message = tuple[int, dict[str, Any]]


def network(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Linear(*input_shape, num_classes)


def slow_on_rank_0(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    from sparkdl.cluster import current_rank

    if current_rank().rank == 0 and outputs.requires_grad:
        time.sleep(SLOW)
    return functional.cross_entropy(outputs, labels)


@pytest.fixture(scope="module")
def told(backend: Backend, clouds: Dataset, tmp_path_factory: pytest.TempPathFactory) -> list[Message]:
    """What two ranks tell the driver in two epochs, one of them being slow."""
    messages: list[Message] = []
    settings = Train(model=network, epochs=2, batch_size=4, loss=slow_on_rank_0)
    job = Job(clouds, settings, str(tmp_path_factory.mktemp("run")), backend, reference=2)
    run_local(partial(train_rank, job), 2, backend=backend, on_message=lambda *message: messages.append(message))
    return messages


def test_a_slow_rank_is_waited_for(told: list[Message]) -> None:
    tables = [message["times"] for _, message in told if message["kind"] == "times"]
    assert len(tables) == 2
    slow, fast = (RankTimes(*each) for each in tables[1])
    assert slow.steps == fast.steps == STEPS
    assert slow.computing > STEPS * SLOW
    assert slow.waiting < 0.2 * fast.waiting
    assert fast.waiting > 0.5 * STEPS * SLOW
    assert slow.bytes_sent == fast.bytes_sent > STEPS * 20 * 4  # a matrix of 4 x 4, and a bias


def test_a_rank_s_times_of_an_epoch_add_up_to_its_steps(told: list[Message]) -> None:
    first = next(message["times"] for _, message in told if message["kind"] == "times")
    traces = {rank: message["events"] for rank, message in told if message["kind"] == "trace"}
    names = {f"step {number}" for number in range(1, STEPS + 1)}
    for rank, times in enumerate(first):
        seconds = sum(event["dur"] for event in traces[rank] if event["name"] in names) / 1e6
        assert RankTimes(*times).seconds == pytest.approx(seconds, rel=0.1)


def test_the_strategy_s_own_figures_are_among_those_of_an_epoch(
    backend: Backend, clouds: Dataset, tmp_path: object
) -> None:
    settings = Train(model=network, batch_size=4, strategy={"kind": "allreduce", "measure_noise": True})
    job = Job(clouds, settings, f"{tmp_path}/run", backend, reference=2)
    (figures,) = run_local(partial(train_rank, job), 2, backend=backend)[0].history
    assert 1 < figures["gradient_diversity"] < 2  # two ranks
    assert figures["gradient_noise_scale"] > 0


def test_first_steps_are_traced_on_every_rank(told: list[Message]) -> None:
    traces = {rank: message["events"] for rank, message in told if message["kind"] == "trace"}
    assert set(traces) == {0, 1}
    for events in traces.values():
        steps = [event for event in events if event["name"].startswith("step ")]
        assert [event["name"] for event in steps] == [f"step {number}" for number in range(1, TRACED_STEPS + 1)]
        assert abs(steps[0]["ts"] / 1e6 - time.time()) < 600
    waits = [event["dur"] for event in traces[1] if event["name"] == "exchange"]
    assert sum(waits) > 0.5 * TRACED_STEPS * SLOW * 1e6


def fails(calls: list[int], outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    calls.append(1)
    if len(calls) == 5:
        raise ValueError("of the user's")
    return functional.cross_entropy(outputs, labels)


def test_the_steps_before_a_failure_are_traced(backend: Backend, clouds: Dataset, tmp_path: object) -> None:
    messages: list[Message] = []
    settings = Train(model=network, batch_size=4, loss=partial(fails, []))
    train = partial(train_rank, Job(clouds, settings, f"{tmp_path}/run", backend, reference=1))
    with pytest.raises(RankError, match="of the user's"):
        run_local(train, 1, backend=backend, on_message=lambda *message: messages.append(message))
    (events,) = [message["events"] for _, message in messages if message["kind"] == "trace"]
    names = [event["name"] for event in events if event["name"] not in ("load", "save", "exchange")]
    assert names == ["step 1", "step 2", "step 3", "step 4", "interrupted"]


def test_a_run_ends_with_the_epoch_that_reaches_its_target(backend: Backend, clouds: Dataset, tmp_path: object) -> None:
    target = {"metric": "validation_loss", "value": 1.0}
    settings = Train(model=network, epochs=50, batch_size=8, learning_rate=0.05, target=target)
    job = Job(clouds, settings, f"{tmp_path}/run", backend, reference=2)
    outcome = run_local(partial(train_rank, job), 2, backend=backend)[0]
    losses = [epoch["validation_loss"] for epoch in outcome.history]
    assert len(losses) < 50 and losses[-1] <= 1.0 and all(loss > 1.0 for loss in losses[:-1])
    assert all(epoch["seconds"] > 0 for epoch in outcome.history)
