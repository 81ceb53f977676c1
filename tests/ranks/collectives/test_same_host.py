"""Ranks of one host exchange through shared memory; those that have none in common, through sockets."""

import functools
import os
import resource
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import HorovodCollectives
from sparkdl.errors import RankError

SMALL = 64 << 10
"""Bytes that ranks exchange at once; more of them are summed up in parts."""
RING = 256 << 10
"""Bytes that sockets exchange by recursive doubling; more of them go around a ring."""
CHUNK = 2 << 20
"""Bytes whose parts are summed up together."""
LENGTHS = [1, *(limit // 4 + more for limit in (SMALL, RING, CHUNK) for more in (0, 1)), 1_234_567]


def shares(rank: int) -> list[torch.Tensor]:
    """One rank's tensors of several types, on both sides of each limit, and of no round length."""
    generator = torch.Generator().manual_seed(rank)
    floats = [torch.randn(length, generator=generator) for length in LENGTHS]
    doubles = [torch.randn(length, generator=generator, dtype=torch.float64) for length in (7, 100_003)]
    return [*floats, *doubles, torch.randint(-9, 9, (99_991,), generator=generator)]


def halves(rank: int) -> list[torch.Tensor]:
    """The same numbers as some of ``shares``, in the type in which the order of additions shows most."""
    return [tensor.half() for tensor in shares(rank)[:4]]


def shares_memory() -> bool:
    return any(each.path.startswith("/dev/shm/gloo-") for each in psutil.Process().memory_maps())


def reduced(shared: bool, rank: Rank) -> tuple[bool, list[torch.Tensor], list[torch.Tensor]]:
    """Whether this rank sees memory of the others; the sums of ``shares``; the means of ``halves``."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if not shared and rank.rank == 0:  # who makes the memory cannot make so much
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    with HorovodCollectives() as collectives:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        sums = [collectives.allreduce(tensor, op="sum") for tensor in shares(rank.rank)]
        means = halves(rank.rank)
        for index, tensor in enumerate(means):
            collectives.start_mean([tensor], name=f"half.{index}")()
        return shares_memory(), sums, means


@pytest.mark.parametrize("size", [2, 4, 5])
def test_all_ranks_have_the_same_bits_through_memory_and_through_sockets(size: int) -> None:
    through_memory, through_sockets = (run_local(functools.partial(reduced, shared), size) for shared in (True, False))
    assert [mapped for mapped, *_ in through_memory] == [True] * size
    assert [mapped for mapped, *_ in through_sockets] == [False] * size
    _, sums, means = through_memory[0]
    for index, found in enumerate(sums):
        tolerance = {torch.float32: 1e-5, torch.float64: 1e-14}.get(found.dtype, 0)
        expected = torch.stack([shares(rank)[index] for rank in range(size)]).sum(0)
        torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)
    for index, found in enumerate(means):
        expected = torch.stack([halves(rank)[index] for rank in range(size)]).float().mean(0)
        torch.testing.assert_close(found.float(), expected, rtol=0, atol=1e-2)
    for _, *others in (*through_memory, *through_sockets):
        for first, other in zip([*sums, *means], [*others[0], *others[1]], strict=True):
            assert torch.equal(first, other)


def test_many_small_messages_follow_each_other_without_a_mistake() -> None:
    def count(rank: Rank) -> bool:
        with HorovodCollectives() as collectives:
            found = [collectives.allreduce(torch.tensor([rank.rank + n]), op="sum").item() for n in range(300)]
            return shares_memory() and found == [3 * n + 3 for n in range(300)]

    assert run_local(count, 3) == [True] * 3


def test_who_sends_weights_need_not_be_allowed_to_write_them(tmp_path: Path) -> None:
    sizes = [1, SMALL, SMALL + 1]

    def send(rank: Rank) -> bool:
        class Weights(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                for size in sizes:
                    values = np.memmap(
                        tmp_path / f"{size}-{rank.rank}", np.uint8, "r" if rank.rank else "w+", shape=size
                    )
                    self.register_buffer(f"weights{size}", torch.from_numpy(values))

        if rank.rank == 1:
            for size in sizes:
                (tmp_path / f"{size}-1").write_bytes(b"\7" * size)
        network = Weights()
        with HorovodCollectives() as collectives:
            collectives.broadcast_parameters(network, root=1)
            return shares_memory() and all(bool((buffer == 7).all()) for buffer in network.buffers())

    assert run_local(send, 2) == [True, True]


def test_a_process_may_meet_others_twice_and_no_memory_is_left() -> None:
    def meet(rank: Rank) -> list[bool]:
        found = []
        for _ in range(2):
            with HorovodCollectives() as collectives:
                found += [shares_memory(), collectives.allreduce(torch.ones(1), op="sum").item() == 2]
            found.append(not shares_memory())
        return found

    before = set(Path("/dev/shm").glob("gloo-*"))
    assert run_local(meet, 2) == [[True] * 6] * 2
    left = set(Path("/dev/shm").glob("gloo-*")) - before
    deadline = time.monotonic() + 30
    while any(path.exists() for path in left) and time.monotonic() < deadline:  # of other runs that are starting
        time.sleep(0.1)
    assert not any(path.exists() for path in left)


def test_a_rank_that_is_killed_is_missed_at_once_by_all_also_by_who_waits_for_others(tmp_path: Path) -> None:
    def work(rank: Rank) -> None:
        with HorovodCollectives() as collectives:
            collectives.allreduce(torch.ones(3))
            if rank.rank == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            started, shared = time.monotonic(), shares_memory()
            try:
                collectives.allreduce(torch.ones(3))
            finally:
                (tmp_path / str(rank.rank)).write_text(str(time.monotonic() - started if shared else "no memory"))

    with pytest.raises(RankError, match="rank 3"):
        run_local(work, 4)
    noticed = {path.name: float(path.read_text()) for path in tmp_path.iterdir()}
    assert noticed.keys() == {"0", "1", "2"} and max(noticed.values()) < 3


def test_a_rank_that_stands_still_is_waited_for_as_long_as_horovod_is_told_to(tmp_path: Path) -> None:
    def work(rank: Rank) -> None:
        (tmp_path / f"ready{rank.rank}").touch()
        while not (tmp_path / f"ready{1 - rank.rank}").exists():
            time.sleep(0.01)
        os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "5"  # for the meeting, too
        with HorovodCollectives() as collectives:
            other = collectives.allgather_object(os.getpid())[1]
            if rank.rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            started = time.monotonic()
            try:
                collectives.allreduce(torch.ones(3))
            finally:
                if rank.rank == 0:
                    (tmp_path / "seconds").write_text(str(time.monotonic() - started))
                    os.kill(other, signal.SIGCONT)

    with pytest.raises(RankError, match="Horovod has been shut down"):
        run_local(work, 2)
    assert 3 < float((tmp_path / "seconds").read_text()) < 15
