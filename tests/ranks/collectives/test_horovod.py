"""What Horovod's edits are for: two processes on this machine in one launch."""

import random
import time

import pytest
import torch

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Communicator, HorovodBackend


def means_in_any_order(communicator: Communicator) -> bool:
    """Whether 100 rounds of messages are right that each rank begins in an order and a rhythm of its own."""
    order = random.Random(communicator.rank)
    right = True
    for number in range(100):
        tensors = [torch.full((4**index,), float(communicator.rank + number)) for index in range(7)]
        waits = []
        for index in order.sample(range(7), 7):
            waits.append(communicator.start_mean([tensors[index]], name=f"message.{index}"))
            time.sleep(order.random() / 500)
        for wait in waits:
            wait()
        right = right and all(bool((tensor == number + 0.5).all()) for tensor in tensors)
    return right


def late_answers(communicator: Communicator) -> int:
    """How many of 20 messages take long that the ranks begin, one just before the other, 0.1 s after the last one."""
    rhythm, late = random.Random(communicator.rank), 0
    for _ in range(20):
        time.sleep(0.1 + rhythm.uniform(-0.003, 0.003))
        started = time.perf_counter()
        communicator.start_mean([torch.ones(10)], name="in time")()
        late += time.perf_counter() - started > 0.08
    return late


def exercise(rank: Rank) -> dict:
    with HorovodBackend().connect() as communicator:
        return {"in any order": means_in_any_order(communicator), "late": late_answers(communicator)}


@pytest.fixture(scope="module")
def found() -> list[dict]:
    return run_local(exercise, 2, backend=HorovodBackend())


def test_messages_may_be_begun_in_any_order_on_each_rank(found) -> None:
    assert all(each["in any order"] for each in found)


def test_a_rank_that_has_slept_answers_at_once(found) -> None:
    assert all(each["late"] < 5 for each in found)
