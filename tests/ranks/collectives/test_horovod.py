"""What Horovod's patches are for, and the order in which it adds up: processes on this machine."""

import os
import random
import signal
import subprocess
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Communicator, HorovodBackend
from sparkdl.errors import RankError


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


LENGTHS = [1, 1_000, 262_145, 1_234_567]
"""Of tensors: what Gloo cuts into parts for its ring, and what it does not."""


def random_tensors(rank: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(length, generator=generator) for length in LENGTHS]


def sums(rank: Rank) -> list[torch.Tensor]:
    with HorovodBackend().connect() as communicator:
        return [communicator.all_reduce(tensor, op="sum") for tensor in random_tensors(rank.rank)]


def test_what_two_ranks_add_up_has_the_bits_of_one_addition() -> None:
    expected = [first + second for first, second in zip(random_tensors(0), random_tensors(1), strict=True)]
    for found in run_local(sums, 2, backend=HorovodBackend()):
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


def test_many_ranks_have_the_same_bits() -> None:
    first, *others = run_local(sums, 4, backend=HorovodBackend())
    for found in others:
        assert all(torch.equal(*pair) for pair in zip(found, first, strict=True))


def test_a_rank_that_is_killed_is_missed_at_once_by_all(tmp_path: Path) -> None:
    def work(rank: Rank) -> None:
        with HorovodBackend().connect() as communicator:
            communicator.all_reduce(torch.ones(3))
            if rank.rank == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            started = time.monotonic()
            try:
                communicator.all_reduce(torch.ones(3))
            finally:
                (tmp_path / str(rank.rank)).write_text(str(time.monotonic() - started))

    with pytest.raises(RankError, match="rank 3"):
        run_local(work, 4, backend=HorovodBackend())
    noticed = {path.name: float(path.read_text()) for path in tmp_path.iterdir()}
    assert noticed.keys() == {"0", "1", "2"} and max(noticed.values()) < 10  # of the 120 s that Gloo would wait


def test_a_rank_that_waits_for_a_stopped_one_lets_its_other_threads_run() -> None:
    """Its heartbeat is one of them: the driver would take both ranks for stopped."""

    def work(rank: Rank) -> float:
        with HorovodBackend().connect() as communicator:
            communicator.barrier()
            if rank.rank == 1:
                going_on = subprocess.Popen(["sh", "-c", f"sleep 3; kill -CONT {os.getpid()}"])
                os.kill(os.getpid(), signal.SIGSTOP)
                going_on.wait()
                communicator.barrier()
                return 0.0
            times, ended = [time.monotonic()], threading.Event()

            def note_the_time() -> None:
                while not ended.wait(0.05):
                    times.append(time.monotonic())

            clock = threading.Thread(target=note_the_time)
            clock.start()
            time.sleep(1)  # Horovod's own thread asks the stopped rank in the meantime
            communicator.barrier()
            ended.set()
            clock.join()
            return max(after - before for before, after in pairwise(times))

    assert run_local(work, 2, backend=HorovodBackend())[0] < 1  # of the two seconds that it waits


def test_a_group_of_ranks_does_not_wait_for_those_that_are_idle() -> None:
    def work(rank: Rank) -> float:
        with HorovodBackend().connect() as communicator:
            group = communicator.split(int(rank.rank == 2))
            communicator.barrier()
            if rank.rank == 2:
                time.sleep(2)
            started = time.perf_counter()
            for _ in range(20):
                group.all_reduce(torch.ones(3))
            seconds = time.perf_counter() - started
            communicator.barrier()
            return seconds

    assert max(run_local(work, 3, backend=HorovodBackend())) < 1
