"""Which link an exchange takes."""

import pytest

from sparkdl.planning.cost import Link, Traffic
from sparkdl.planning.links import Links

INSIDE, BETWEEN = Link(start=1e-5, bandwidth=1e9), Link(start=1e-3, bandwidth=1e7)
LINKS = Links(INSIDE, BETWEEN, ranks_of_host=4)
MODEL = 1e6


def test_ranks_of_a_host_take_the_link_inside_it() -> None:
    assert LINKS.among(4) is INSIDE and LINKS.among(5) is BETWEEN
    assert LINKS.in_replica(Traffic(3, 1e6), 4) == pytest.approx(3e-5 + 1e-3)
    assert LINKS.in_replica(Traffic(3, 1e6), 8) == pytest.approx(3e-3 + 0.1)
    assert LINKS.between_replicas(MODEL, 2, ranks_of_replica=2) == pytest.approx(2e-5 + 1e-3)


def test_a_ring_over_hosts_takes_as_long_as_the_link_of_a_host() -> None:
    found = LINKS.between_replicas(MODEL, 8)
    assert found == pytest.approx(2 * 1e-3 + 12 * 1e-5 + 2 * MODEL * 7 / 8 / 1e7)


def test_rings_of_parts_share_the_link_of_a_host() -> None:
    whole = LINKS.between_replicas(MODEL, 2, ranks_of_replica=4)
    one = Links(INSIDE, BETWEEN, ranks_of_host=1).between_replicas(MODEL, 2)
    assert whole - 2e-3 == pytest.approx(4 * (one - 2e-3))


def test_a_single_replica_has_nobody_to_average_with() -> None:
    assert LINKS.between_replicas(MODEL, 1, ranks_of_replica=4) == 0.0


def test_on_one_host_all_links_are_one() -> None:
    assert Links.of_one_host(INSIDE, ranks=8).among(8) is INSIDE
