"""What ranks say on rank 0's host, and how it is fetched."""

import time
from collections.abc import Callable, Iterator

import pytest

from sparkdl.cluster import meeting_place
from sparkdl.cluster.meeting_place import MeetingPlace, fetch, kept_reader, order
from sparkdl.cluster.rendezvous import RendezvousAddress
from sparkdl.cluster.sender import Sender

SECRET, TOKEN, HOST = b"s" * 32, "right", "127.0.0.1"


@pytest.fixture
def place() -> Iterator[MeetingPlace]:
    opened = MeetingPlace(HOST, size=1, secret=SECRET, token=TOKEN, lease=60)
    yield opened
    fetch(address(opened), order(SECRET, known=0, stop=False, end=True))
    opened.__exit__(None, None, None)


def address(place: MeetingPlace, token: str = TOKEN) -> RendezvousAddress:
    return RendezvousAddress(HOST, place.ports[1], token)


def rank_of(place: MeetingPlace) -> Sender:
    return Sender((HOST, place.ports[0]), secret=SECRET, rank=0)


def fetched(place: MeetingPlace, *, known: int = 0, stop: bool = False, topics: int) -> list[tuple[str, dict]]:
    """The frames after those that are known, once there are so many."""
    found: list[tuple[str, dict]] = []

    def enough() -> bool:
        reader = kept_reader(SECRET)
        answer = fetch(address(place), order(SECRET, known=known, stop=stop, end=False))
        found[:] = reader.feed(answer or b"")
        return len(found) >= topics

    eventually(enough)
    return found


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_a_rank_says_is_fetched_in_order_and_again_until_it_is_known(place: MeetingPlace) -> None:
    rank = rank_of(place)
    rank.send("message", {"kind": "step", "number": 1})
    for _ in range(2):
        hello, message = fetched(place, topics=2)
        assert hello[0] == "hello"
        assert message == ("message", {"rank": 0, "body": {"kind": "step", "number": 1}})
    rank.close()


def test_the_order_to_stop_reaches_a_rank(place: MeetingPlace) -> None:
    rank = rank_of(place)
    fetched(place, stop=True, topics=1)
    eventually(lambda: rank.stop_requested)
    rank.close()


def test_it_ends_when_all_have_left_and_that_is_known(place: MeetingPlace) -> None:
    rank_of(place).close()
    assert [topic for topic, _ in fetched(place, topics=2)] == ["hello", "bye"]
    fetch(address(place), order(SECRET, known=2, stop=False, end=False))
    eventually(lambda: not place._thread.is_alive())


@pytest.mark.parametrize("heard", [False, True])
def test_it_ends_when_the_client_is_not_heard_of_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], heard: bool
) -> None:
    monkeypatch.setattr(meeting_place, "FIRST_SECONDS", 60 if heard else 0)
    with MeetingPlace(HOST, size=1, secret=SECRET, token=TOKEN, lease=0.1) as place:
        where = address(place)
        if heard:
            fetch(where, order(SECRET, known=0, stop=False, end=False))
    assert fetch(where, order(SECRET, known=0, stop=False, end=False)) is None
    assert "sparkdl: the client has sent nothing for 0.1 s" in capfd.readouterr().err


@pytest.mark.parametrize(("secret", "token"), [(b"x" * 32, TOKEN), (SECRET, "wrong")])
def test_a_stranger_gets_nothing_and_changes_nothing(place: MeetingPlace, secret: bytes, token: str) -> None:
    rank = rank_of(place)
    with pytest.raises(ConnectionError, match="does not accept"):
        fetch(address(place, token), order(secret, known=9, stop=True, end=True))
    assert [topic for topic, _ in fetched(place, topics=1)] == ["hello"]
    assert not rank.stop_requested
    rank.close()
