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


def shares(rank: int) -> list[torch.Tensor]:
    """One rank's tensors of several types, on both sides of each limit, and of no round length."""
    generator = torch.Generator().manual_seed(rank)
    lengths = [1, *(limit // 4 + more for limit in (SMALL, RING, CHUNK) for more in (0, 1)), 1_234_567]
    floats = [torch.randn(length, generator=generator) for length in lengths]
    doubles = [torch.randn(length, generator=generator, dtype=torch.float64) for length in (7, 100_003)]
    return [*floats, *doubles, torch.randint(-9, 9, (99_991,), generator=generator)]


def half_means(collectives: HorovodCollectives) -> bool:
    """Whether means of float16 are right, of few and of many."""
    found = [torch.full((length,), collectives.rank, dtype=torch.float16) for length in (3, 100_003)]
    for index, tensor in enumerate(found):
        collectives.start_mean([tensor], name=f"half.{index}")()
    expected = torch.tensor((collectives.size - 1) / 2)
    return all(torch.allclose(tensor.float(), expected, rtol=1e-2) for tensor in found)


def shares_memory() -> bool:
    return any(each.path.startswith("/dev/shm/gloo-") for each in psutil.Process().memory_maps())


def sums(shared: bool, rank: Rank) -> tuple[bool, list[torch.Tensor]]:
    """Whether this rank sees memory of the others; and the sums."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if not shared and rank.rank == 0:  # who makes the memory cannot make so much
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    with HorovodCollectives() as collectives:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert half_means(collectives)
        return shares_memory(), [collectives.allreduce(tensor, op="sum") for tensor in shares(rank.rank)]


@pytest.mark.parametrize("size", [2, 4, 5])
def test_all_ranks_have_the_same_bits_through_memory_and_through_sockets(size: int) -> None:
    through_memory, through_sockets = (run_local(functools.partial(sums, shared), size) for shared in (True, False))
    assert [mapped for mapped, _ in through_memory] == [True] * size
    assert [mapped for mapped, _ in through_sockets] == [False] * size
    for index, first in enumerate(through_memory[0][1]):
        tolerance = {torch.float32: 1e-5, torch.float64: 1e-14}.get(first.dtype, 0)
        expected = torch.stack([shares(rank)[index] for rank in range(size)]).sum(0)
        torch.testing.assert_close(first, expected, rtol=0, atol=tolerance)
        assert all(torch.equal(other[index], first) for _, other in (*through_memory, *through_sockets))


def test_many_small_messages_follow_each_other_without_a_mistake() -> None:
    def count(rank: Rank) -> bool:
        with HorovodCollectives() as collectives:
            found = [collectives.allreduce(torch.tensor([rank.rank + n]), op="sum").item() for n in range(300)]
        return found == [3 * n + 3 for n in range(300)]

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
        return all(bool((buffer == 7).all()) for buffer in network.buffers())

    assert run_local(send, 2) == [True, True]


def test_a_process_may_meet_others_twice_and_no_memory_is_left() -> None:
    def meet(rank: Rank) -> list[bool]:
        found = []
        for _ in range(2):
            with HorovodCollectives() as collectives:
                found += [shares_memory(), collectives.allreduce(torch.ones(1), op="sum").item() == 2]
            found.append(not shares_memory())
        return found

    assert run_local(meet, 2) == [[True] * 6] * 2
    names = set(Path("/dev/shm").glob("gloo-*"))  # of runs that are about to start, at most
    time.sleep(1)
    assert not any(path.exists() for path in names)


def test_a_rank_that_is_killed_is_missed_at_once_by_all(tmp_path: Path) -> None:
    def work(rank: Rank) -> None:
        with HorovodCollectives() as collectives:
            collectives.allreduce(torch.ones(3))
            if rank.rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            started = time.monotonic()
            try:
                collectives.allreduce(torch.ones(3))
            finally:
                (tmp_path / str(rank.rank)).write_text(str(time.monotonic() - started))

    with pytest.raises(RankError, match="rank 2"):
        run_local(work, 3)
    noticed = [float(path.read_text()) for path in tmp_path.iterdir()]  # whoever has not yet is ended by the driver
    assert noticed and max(noticed) < 5


def test_a_rank_that_stands_still_is_waited_for_as_long_as_horovod_is_told_to(tmp_path: Path) -> None:
    def work(rank: Rank) -> None:
        os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "2"
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

    with pytest.raises(RankError):
        run_local(work, 2)
    assert 1.5 < float((tmp_path / "seconds").read_text()) < 10
