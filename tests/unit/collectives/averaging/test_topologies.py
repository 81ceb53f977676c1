"""Wherever numbers are added up, their sum is the same."""

from collections.abc import Callable

import pytest
import torch

from sparkdl.collectives.averaging import Averager, advance, create_averager, finish
from sparkdl.settings.averaging import Averaging, CompressedAveraging, Topology

from .threads import ThreadMessenger, average, on_threads

HOSTS = ["b", "a", "b", "a", "c", "b", "b", "b"]
"""On which ranks are: not the same number on each host, and not in order."""
TOPOLOGIES: list[Topology] = ["ring", "butterfly", "server", "sharded_servers", "two_levels"]
of_each_topology = pytest.mark.parametrize("topology", TOPOLOGIES)


def buckets(rank: int, dtype: torch.dtype = torch.float64) -> list[list[torch.Tensor]]:
    """One bucket of several tensors, one of a single tensor, and one that has fewer values than there are ranks."""
    random = torch.Generator().manual_seed(rank)
    shapes = [[(7, 5), (3,), (2, 3, 4)], [(41, 9)], [(2,), ()]]
    return [[torch.randn(shape, generator=random, dtype=dtype) for shape in bucket] for bucket in shapes]


def averaged(options: Averaging, dtype: torch.dtype = torch.float64) -> Callable[[ThreadMessenger], list]:
    def work(rank: ThreadMessenger) -> list:
        own = buckets(rank.rank, dtype)
        average(create_averager(options, rank), *own)
        return own

    return work


@of_each_topology
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_all_ranks_have_the_same_bits_of_the_mean(topology: Topology, size: int) -> None:
    found = on_threads(size, averaged(Averaging(topology=topology)), hosts=HOSTS[:size])
    for number, bucket in enumerate(found[0]):
        for place, tensor in enumerate(bucket):
            expected = torch.stack([buckets(rank)[number][place] for rank in range(size)]).mean(0)
            torch.testing.assert_close(tensor, expected, rtol=1e-13, atol=1e-13)
            assert all(torch.equal(other[number][place], tensor) for other in found)


@of_each_topology
def test_exchanges_that_overlap_do_not_take_each_others_messages(topology: Topology) -> None:
    """One begins, another one begins, and the first one is finished before the second one goes on."""

    def work(rank: ThreadMessenger) -> list[torch.Tensor]:
        averager = create_averager(Averaging(topology=topology), rank)
        first, second = torch.full((8,), float(rank.rank)), torch.full((8,), 10.0 * rank.rank)
        exchanges = [averager.exchange([each], key=key) for key, each in (("first", first), ("second", second))]
        for exchange in exchanges:
            advance(exchange)
        for exchange in exchanges:
            finish([exchange])
        return [first, second]

    for first, second in on_threads(3, work, hosts=HOSTS[:3]):
        torch.testing.assert_close(first, torch.ones(8))
        torch.testing.assert_close(second, torch.full((8,), 10.0))


@of_each_topology
def test_the_mean_of_large_halves_is_finite_where_their_sum_is_not(topology: Topology) -> None:
    def work(rank: ThreadMessenger) -> torch.Tensor:
        large = torch.full((9,), 6e4)
        average(create_averager(CompressedAveraging(compression="float16", topology=topology), rank), [large])
        return large

    assert all((each - 6e4).abs().max() < 100 for each in on_threads(4, work, hosts=["a", "a", "b", "b"]))


@of_each_topology
def test_low_rank_matrices_may_be_added_up_anywhere(topology: Topology) -> None:
    def sums(topology: Topology) -> list:
        options = CompressedAveraging(compression={"kind": "powersgd", "rank": 1}, topology=topology)
        return on_threads(4, averaged(options), hosts=["a", "b", "c", "d"])[3]

    for bucket, other in zip(sums(topology), sums("ring"), strict=True):
        for tensor, expected in zip(bucket, other, strict=True):
            torch.testing.assert_close(tensor, expected)


def sent(make: Callable[[ThreadMessenger], Averager], size: int, hosts: list[str] | None = None) -> list[int]:
    """Bytes that each rank sends for 960 values of 8 bytes."""

    def work(rank: ThreadMessenger) -> int:
        averager, before = make(rank), rank.bytes_sent
        average(averager, [torch.ones(960, dtype=torch.float64)])
        return rank.bytes_sent - before

    return on_threads(size, work, hosts=hosts)


def test_ranks_send_what_their_topology_says() -> None:
    whole = 960 * 8
    topologies = {name: lambda rank, name=name: create_averager(Averaging(topology=name), rank) for name in TOPOLOGIES}
    assert sent(topologies["butterfly"], 4) == [2 * whole * 3 // 4] * 4
    assert sent(topologies["butterfly"], 5) == [2 * whole * 3 // 4 + whole, *[2 * whole * 3 // 4] * 3, whole]
    assert sent(topologies["server"], 4) == [whole * 3, whole, whole, whole]
    assert sent(topologies["sharded_servers"], 4) == [2 * whole * 3 // 4] * 4
    on_two_hosts = sent(topologies["two_levels"], 4, hosts=["a", "a", "b", "b"])
    assert on_two_hosts == [2 * whole, whole, 2 * whole, whole]  # one message to the other server, one to the own rank


def test_a_butterfly_sends_quarters_to_another_host_where_halves_may_stay_inside() -> None:
    def work(rank: ThreadMessenger) -> int:
        average(create_averager(Averaging(topology="butterfly"), rank), [torch.ones(960, dtype=torch.float64)])
        return rank.bytes_abroad

    assert on_threads(4, work, hosts=["a", "a", "b", "b"]) == [2 * 960 * 8 // 4] * 4  # a quarter there, and one back


def test_a_compression_between_hosts_sees_the_shapes_and_only_the_servers_keep_what_is_unsent() -> None:
    def work(rank: ThreadMessenger) -> tuple[torch.Tensor, list[str]]:
        averager = create_averager(CompressedAveraging(compression="powersgd", topology="two_levels"), rank)
        matrix = torch.outer(torch.arange(1.0, 41), torch.arange(1.0, 31)) * (rank.rank + 1)
        average(averager, [matrix, torch.ones(3)])
        return matrix, [name for state in averager.own_state().values() for name in state]

    found = on_threads(4, work, hosts=["a", "a", "b", "b"])
    expected = torch.outer(torch.arange(1.0, 41), torch.arange(1.0, 31)) * 2.5
    assert all(torch.allclose(matrix, expected, rtol=1e-4) for matrix, _ in found)
    assert [names for _, names in found] == [["bucket.0.0"], [], ["bucket.0.0"], []]
