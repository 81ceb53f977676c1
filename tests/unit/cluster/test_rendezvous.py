import http.client

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkdl.cluster.rendezvous import Rendezvous, interface_towards, order_by_host, place_of


def test_ranks_on_one_host_are_numbered_within_it() -> None:
    places = [place_of(rank, ["a", "a", "a"]) for rank in range(3)]
    assert [(p.local_rank, p.local_size, p.cross_rank, p.cross_size) for p in places] == [
        (0, 3, 0, 1),
        (1, 3, 0, 1),
        (2, 3, 0, 1),
    ]


def test_hosts_with_unequal_numbers_of_ranks() -> None:
    places = [place_of(rank, ["a", "b", "a", "c", "a", "b"]) for rank in range(6)]
    assert [(p.local_rank, p.local_size, p.cross_rank, p.cross_size) for p in places] == [
        (0, 3, 0, 3),
        (0, 2, 1, 3),
        (1, 3, 0, 2),
        (0, 1, 2, 3),
        (2, 3, 0, 1),
        (1, 2, 1, 2),
    ]


def test_tasks_of_a_host_follow_each_other_and_the_first_one_stays_first() -> None:
    assert order_by_host(["b", "a", "b", "c", "a", "b"]) == [0, 2, 5, 1, 4, 3]
    assert order_by_host(["a", "a", "a"]) == [0, 1, 2]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))
def test_local_and_cross_ranks_are_complete_in_every_group(hosts: list[str]) -> None:
    places = [place_of(rank, hosts) for rank in range(len(hosts))]
    for host in set(hosts):
        group = [p for p in places if p.host == host]
        assert [p.local_rank for p in group] == list(range(len(group)))
        assert {p.local_size for p in group} == {len(group)}
    for local_rank in {p.local_rank for p in places}:
        group = [p for p in places if p.local_rank == local_rank]
        assert sorted(p.cross_rank for p in group) == list(range(len(group)))
        assert {p.cross_size for p in group} == {len(group)}


def test_loopback_is_reached_through_the_loopback_interface() -> None:
    assert interface_towards("127.0.0.1") == "lo"


@pytest.mark.parametrize(
    ("path", "status"),
    [("/right:0/global/0", 200), ("/wrong:0/global/0", 403), ("/global/0", 403), ("/", 403), ("//", 403)],
)
def test_only_requests_with_the_token_are_answered(path: str, status: int) -> None:
    with Rendezvous("127.0.0.1", host="127.0.0.1", token="right") as rendezvous:
        connection = http.client.HTTPConnection("127.0.0.1", rendezvous.address.port, timeout=5)
        connection.request("PUT", path, body=b"value")
        assert connection.getresponse().status == status


def test_an_oversized_entry_is_refused() -> None:
    with Rendezvous("127.0.0.1", host="127.0.0.1", token="right") as rendezvous:
        connection = http.client.HTTPConnection("127.0.0.1", rendezvous.address.port, timeout=5)
        connection.putrequest("PUT", "/right:0/global/0")
        connection.putheader("Content-Length", str(1 << 40))
        connection.endheaders()
        assert connection.getresponse().status == 413
