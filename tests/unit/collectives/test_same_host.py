"""Ranks of one host exchange through shared memory; those that have none in common, through sockets."""

import functools
import os
import resource
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import HorovodCollectives
from sparkdl.errors import RankError

SMALL = 64 << 10
"""Bytes that ranks exchange at once; more of them are summed up in parts."""
RING = 256 << 10
"""Bytes that sockets exchange by recursive doubling; more of them go around a ring."""
CHUNK = 2 << 20
"""Bytes of which the parts are summed up together, of two ranks and of four."""


def shares(rank: int) -> list[torch.Tensor]:
    """One rank's tensors of several types, on both sides of each limit, and of no round length."""
    generator = torch.Generator().manual_seed(rank)
    lengths = [1, *(limit // 4 + more for limit in (SMALL, RING, CHUNK) for more in (0, 1)), 1_234_567]
    floats = [torch.randn(length, generator=generator) for length in lengths]
    doubles = [torch.randn(length, generator=generator, dtype=torch.float64) for length in (7, 100_003)]
    return [*floats, *doubles, torch.randint(-9, 9, (99_991,), generator=generator)]


def sums(shared: bool, rank: Rank) -> tuple[bool, list[torch.Tensor]]:
    """Whether this rank sees memory of the others; and the sums."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if not shared and rank.rank == 0:  # who makes the memory cannot make so much
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    with HorovodCollectives() as collectives:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        mapped = any(each.path.startswith("/dev/shm/gloo-") for each in psutil.Process().memory_maps())
        return mapped, [collectives.allreduce(tensor, op="sum") for tensor in shares(rank.rank)]


@pytest.mark.parametrize("size", [2, 3, 4])
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


def test_no_memory_is_left() -> None:
    def leave(rank: Rank) -> tuple[int, bool]:
        with HorovodCollectives() as collectives:
            collectives.barrier()
        return os.getpid(), any(each.path.startswith("/dev/shm/gloo-") for each in psutil.Process().memory_maps())

    before = set(Path("/dev/shm").glob("gloo-*"))
    assert [mapped for _, mapped in run_local(leave, 2)] == [False, False]
    assert set(Path("/dev/shm").glob("gloo-*")) == before


def test_a_rank_that_is_killed_is_missed_at_once(tmp_path: Path) -> None:
    def work(rank: Rank) -> None:
        with HorovodCollectives() as collectives:
            collectives.allreduce(torch.ones(3))
            if rank.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            started = time.monotonic()
            try:
                collectives.allreduce(torch.ones(3))
            finally:
                (tmp_path / "seconds").write_text(str(time.monotonic() - started))

    with pytest.raises(RankError, match="rank 1"):
        run_local(work, 2)
    assert float((tmp_path / "seconds").read_text()) < 5


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
