import queue
import secrets
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from random import Random

import pytest

from sparkdl.cluster.channel import MAX_STRANGERS, Channel, Event
from sparkdl.cluster.frames import MAX_PAYLOAD_BYTES, TO_DRIVER, _mac
from sparkdl.cluster.sender import Sender

SECRET = secrets.token_bytes(32)
LOOPBACK = "127.0.0.1"
HELLO = b'["hello", {"rank": 0, "nonce": "00"}]'


@pytest.fixture
def events() -> queue.SimpleQueue:
    return queue.SimpleQueue()


@pytest.fixture
def channel(events: queue.SimpleQueue) -> Iterator[Channel]:
    with Channel(LOOPBACK, size=2, secret=SECRET, events=events) as channel:
        yield channel


@pytest.fixture
def sender(channel: Channel) -> Iterator[Sender]:
    sender = Sender((LOOPBACK, channel.port), secret=SECRET, rank=1)
    yield sender
    sender.close()


def frame(payload: bytes, *, nonce: bytes, sequence: int = 0, secret: bytes = SECRET, to: bytes = TO_DRIVER) -> bytes:
    return struct.pack(">I", len(payload)) + _mac(secret, to + nonce, sequence, payload) + payload


def is_dropped(client: socket.socket) -> bool:
    client.settimeout(5)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_frames_arrive_in_order_with_the_rank_that_sent_them(channel, events, sender) -> None:
    for step in range(1000):
        sender.send("message", {"step": step})
    sender.close()
    received = [events.get(timeout=5) for _ in range(1002)]
    assert received[0] == Event(1, "hello", {"rank": 1})
    assert [event.body.get("step") for event in received[1:-1]] == list(range(1000))
    assert received[-1] == Event(1, "bye", {})


def test_a_rank_that_leaves_without_a_word_is_noticed(channel, events) -> None:
    program = (
        "import os, sys; from sparkdl.cluster.sender import Sender;"
        "Sender(('127.0.0.1', int(sys.argv[1])), secret=bytes.fromhex(sys.argv[2]), rank=0); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", program, str(channel.port), SECRET.hex()], check=False)
    assert [events.get(timeout=5).topic for _ in range(2)] == ["hello", "gone"]


def test_a_rank_ends_when_the_driver_does(events) -> None:
    program = (
        "import sys, time; from sparkdl.cluster.sender import Sender;"
        "Sender(('127.0.0.1', int(sys.argv[1])), secret=bytes.fromhex(sys.argv[2]), rank=0); time.sleep(60)"
    )
    with Channel(LOOPBACK, size=1, secret=SECRET, events=events) as channel:
        rank = subprocess.Popen([sys.executable, "-c", program, str(channel.port), SECRET.hex()])
        events.get(timeout=20)
    assert rank.wait(timeout=5) == 1


def test_a_stop_that_comes_after_the_end_stops_nobody(channel) -> None:
    channel.close()
    channel.request_stop()


def test_two_hundred_bad_frames_change_nothing(channel, events, sender) -> None:
    events.get(timeout=5)
    random = Random(7)
    for number in range(200):
        with socket.create_connection((LOOPBACK, channel.port)) as client:
            nonce = client.recv(16, socket.MSG_WAITALL)
            bad = [
                random.randbytes(random.randrange(36, 200)),
                frame(HELLO, nonce=nonce, secret=bytes(32)),
                frame(HELLO, nonce=bytes(16)),
                frame(HELLO, nonce=nonce, sequence=1),
                frame(b"not json", nonce=nonce),
                frame(b'["message", {"rank": 0}]', nonce=nonce),
                frame(b'["hello", {"rank": 2}]', nonce=nonce),
                frame(b'["hello", {"rank": "0"}]', nonce=nonce),
                frame(b"[]", nonce=nonce),
                struct.pack(">I", MAX_PAYLOAD_BYTES + 1) + bytes(32),
                b"\x00",
                b"",
            ][number % 12]
            client.sendall(bad)
            if len(bad) >= 36 and number % 12:
                assert is_dropped(client), f"bad frame {number % 12} was accepted"
    sender.send("message", {"still": "here"})
    assert events.get(timeout=5) == Event(1, "message", {"still": "here"})
    assert events.empty()


def test_a_replayed_connection_is_refused(channel, events) -> None:
    with socket.create_connection((LOOPBACK, channel.port)) as client:
        recorded = frame(HELLO, nonce=client.recv(16, socket.MSG_WAITALL))
        client.sendall(recorded)
        assert events.get(timeout=5).topic == "hello"
        assert b"welcome" in client.recv(1 << 12)
        client.sendall(recorded)
        assert is_dropped(client)
    with socket.create_connection((LOOPBACK, channel.port)) as client:
        client.recv(16, socket.MSG_WAITALL)
        client.sendall(recorded)
        assert is_dropped(client)
    assert events.get(timeout=5).topic == "gone"
    assert events.empty()


def test_silent_strangers_do_not_keep_a_rank_out(channel, events) -> None:
    strangers = [socket.create_connection((LOOPBACK, channel.port)) for _ in range(3 * MAX_STRANGERS)]
    rank = Sender((LOOPBACK, channel.port), secret=SECRET, rank=0)
    assert events.get(timeout=5).topic == "hello"
    rank.close()
    for stranger in strangers:
        stranger.close()


def test_a_driver_that_cannot_be_reached_is_named_with_the_setting_to_change() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(
        ConnectionError, match=rf"rank 3 cannot reach the driver at 127.0.0.1:{port} .*spark.driver.host"
    ):
        Sender((LOOPBACK, port), secret=SECRET, rank=3)


def test_a_message_over_the_limit_is_an_error_of_the_sender(sender) -> None:
    with pytest.raises(ValueError, match="1,048,576 bytes"):
        sender.send("message", {"text": "x" * MAX_PAYLOAD_BYTES})


def test_a_frame_costs_little(channel, events, sender) -> None:
    started = time.monotonic()
    for step in range(2000):
        sender.send("message", {"step": step})
    assert time.monotonic() - started < 1
