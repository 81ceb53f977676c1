"""The cost model's formulas."""

import pytest

from sparkdl.planning.cost import TOPOLOGIES, Link, StepCost, Traffic, fit_link, gathered, two_levels

MB = 1_000_000
LINK = Link(start=1e-4, bandwidth=12.5 * MB)  # 100 Mbit/s


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 100])
def test_a_ring_moves_as_much_however_many_ranks_there_are_and_a_server_more_with_each(ranks: int) -> None:
    ring, server = TOPOLOGIES["ring"](8 * MB, ranks), TOPOLOGIES["server"](8 * MB, ranks)
    assert ring == Traffic(2 * (ranks - 1), 2 * 8 * MB * (ranks - 1) / ranks)
    assert server.bytes == ranks * ring.bytes
    assert TOPOLOGIES["sharded_servers"](8 * MB, ranks) == ring


@pytest.mark.parametrize(("ranks", "messages", "messages_of_ring"), [(2, 2, 2), (4, 4, 6), (8, 6, 14), (512, 18, 1022)])
def test_a_butterfly_starts_few_messages_and_moves_as_much_as_a_ring(
    ranks: int, messages: int, messages_of_ring: int
) -> None:
    butterfly, ring = TOPOLOGIES["butterfly"](8 * MB, ranks), TOPOLOGIES["ring"](8 * MB, ranks)
    assert (butterfly.messages, ring.messages) == (messages, messages_of_ring)
    assert butterfly.bytes == ring.bytes


def test_a_butterfly_pays_for_ranks_beyond_a_power_of_two() -> None:
    assert TOPOLOGIES["butterfly"](8 * MB, 5) == Traffic(4 + 2, 2 * 8 * MB * (3 / 4 + 1))


def test_two_levels_send_what_a_ring_of_hosts_sends() -> None:
    assert two_levels(8 * MB, 2) == TOPOLOGIES["ring"](8 * MB, 2)


def test_a_link_is_found_again_from_its_exchanges() -> None:
    sizes = [TOPOLOGIES["ring"](size, 4) for size in (4_096, 2 * MB, 8 * MB)]
    found = fit_link([(traffic, LINK.seconds(traffic)) for traffic in sizes])
    assert found.start == pytest.approx(LINK.start) and found.bandwidth == pytest.approx(LINK.bandwidth)


def test_a_start_that_is_lost_in_noise_is_none() -> None:
    found = fit_link([(Traffic(6, 1 * MB), 0.07), (Traffic(6, 10 * MB), 0.8)])
    assert found.start == 0 and found.bandwidth == pytest.approx(12.9 * MB, rel=0.05)


def test_exchanges_of_one_size_do_not_tell_a_start_from_a_bandwidth() -> None:
    with pytest.raises(ValueError, match="two sizes"):
        fit_link([(Traffic(6, MB), 0.1), (Traffic(6, MB), 0.11)])


def test_a_period_divides_an_exchange_and_a_compression_shrinks_it() -> None:
    each_step = StepCost(computing=0.1, payload=4 * MB)
    exchange = each_step.seconds(LINK, 4) - 0.1
    assert exchange == pytest.approx(LINK.seconds(TOPOLOGIES["ring"](4 * MB, 4)))
    assert StepCost(0.1, 4 * MB, period=32).seconds(LINK, 4) == pytest.approx(0.1 + exchange / 32)
    assert StepCost(0.1, 2 * MB).seconds(LINK, 4) == pytest.approx(0.1 + exchange / 2, rel=1e-2)


def test_messages_that_cannot_be_added_up_grow_with_the_ranks_in_any_topology() -> None:
    cost = StepCost(computing=0.0, payload=MB, adds_up=False)
    assert gathered(MB, 100) == Traffic(99, 99 * MB)
    for topology in TOPOLOGIES.values():
        assert cost.seconds(LINK, 100, topology) == LINK.seconds(gathered(MB, 100))


def test_a_large_model_travels_in_several_messages() -> None:
    slow_start = Link(start=1.0, bandwidth=1e12)
    assert StepCost(0.0, 24 << 20).seconds(slow_start, 2) == pytest.approx(3 * 2, rel=1e-3)
