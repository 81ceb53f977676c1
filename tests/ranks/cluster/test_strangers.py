"""Two hundred strangers at the doors of a running job of two ranks."""

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator
from functools import partial
from random import Random

import psutil
import pytest
import torch

from sparkdl.cluster import Rank, run_local
from sparkdl.cluster.channel import MAX_STRANGERS
from sparkdl.cluster.frames import MAX_PAYLOAD_BYTES, TO_DRIVER, TO_RANK, FrameWriter
from sparkdl.collectives import Backend

LOOPBACK = "127.0.0.1"
NUM_STRANGERS = 220


def work(backend: Backend, rank: Rank) -> list[float]:
    """Sums over ranks until the driver says stop. What only a rank may know is told to the test."""
    where = next(os.environ[name] for name in ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "SPARKDL_MEETING") if name in os.environ)
    address, _, token = where.partition("/")
    writer = rank._sender._writer
    recorded = FrameWriter(writer._secret, TO_DRIVER, bytes(16)).pack("hello", {"rank": 1, "nonce": "00"})
    channel = rank._sender._socket.getpeername()[1]
    rendezvous = int(address.rpartition(":")[2])
    rank.send("doors", channel=channel, rendezvous=rendezvous, token=token, secret=writer._secret.hex())
    rank.send("recorded", frame=recorded.hex())
    sums = []
    with backend.connect() as collectives:
        stop = 0.0
        while not stop:
            step = len(sums)
            rank.send("step", step=step)
            values = torch.tensor([step + rank.rank, float(rank.stop_requested)], dtype=torch.float64)
            total, stop = collectives.all_reduce(values, op="sum").tolist()
            sums.append(total)
            time.sleep(0.01)
    return sums


def bad_frames(recorded: bytes, random: Random) -> Iterator[bytes]:
    """What strangers send to the channel: noise, forged, replayed, oversized, in the wrong direction, cut off."""
    hello = {"rank": 0, "nonce": "00"}
    while True:
        yield random.randbytes(random.randrange(36, 300))
        yield FrameWriter(bytes(32), TO_DRIVER, bytes(16)).pack("hello", hello)
        yield FrameWriter(bytes(32), TO_RANK, bytes(16)).pack("stop", {})
        yield recorded
        yield struct.pack(">I", MAX_PAYLOAD_BYTES + 1) + bytes(32)
        yield struct.pack(">I", 2**32 - 1) + random.randbytes(100_000)
        yield struct.pack(">I", 100)
        yield b"GET / HTTP/1.1\r\n\r\n" * 10
        yield b"\x80\x04\x95" + random.randbytes(64)  # the beginning of a pickle
        yield b""


def bad_requests(random: Random) -> Iterator[bytes]:
    """What strangers send to the rendezvous: without token, oversized, endless, not HTTP."""
    while True:
        yield b"PUT /global/0 HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"
        yield b"PUT /%s:0/global/0 HTTP/1.1\r\nContent-Length: 1\r\n\r\nx" % random.randbytes(32).hex().encode()
        yield b"DELETE /../../global/1 HTTP/1.1\r\n\r\n"
        yield b"PUT /x HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"
        yield b"PUT /x HTTP/1.1\r\nContent-Length: -1\r\n\r\n"
        yield b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n"
        yield b"X-Header: y\r\n" * 2_000
        yield random.randbytes(200)
        yield b"GET /\xff\xfe HTTP/9\r\n\r\n"
        yield b"GET"
        yield b""


def attack(doors: dict, recorded: bytes) -> list[socket.socket]:
    """Knock at both doors, again and again; return the connections, all of them still open on this side."""
    random = Random(11)
    clients = []
    frames, requests = bad_frames(recorded, random), bad_requests(random)
    for number in range(NUM_STRANGERS):
        port, bad = ((doors["channel"], frames), (doors["rendezvous"], requests))[number % 2]
        client = socket.create_connection((LOOPBACK, port))
        clients.append(client)
        with contextlib.suppress(OSError):  # it was dropped before all was said
            client.sendall(next(bad))
    for port in (doors["channel"], doors["rendezvous"]):  # a flood of those who say nothing
        clients += [socket.create_connection((LOOPBACK, port)) for _ in range(2 * MAX_STRANGERS)]
    return clients


def trickle(client: socket.socket) -> bool:
    """Send one more byte; whether the connection still takes it."""
    try:
        client.sendall(b"G")
    except OSError:
        return False
    return True


def is_answered_with(client: socket.socket) -> bytes:
    """All that a stranger hears before the connection ends."""
    client.settimeout(15)
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while data := client.recv(1 << 12):
            heard += data
    return heard


def test_two_hundred_strangers_change_nothing_in_a_running_job(
    backend: Backend, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkdl.cluster.channel.STRANGER_SECONDS", 3.0)  # how long one may linger without a word
    monkeypatch.setattr("sparkdl.cluster.rendezvous.REQUEST_SECONDS", 3.0)
    doors: dict = {}
    steps: dict[int, list[int]] = {0: [], 1: []}
    others: list[dict] = []
    visible: list[str] = []
    heard: list[bytes] = []
    stop = threading.Event()

    def intrude(recorded: bytes) -> None:
        try:
            clients = attack(doors, recorded)
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and min(map(len, steps.values())) < 50:
                for client in clients:
                    trickle(client)
                time.sleep(0.2)
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):  # one that another test started may have just ended
                    visible.extend([*process.cmdline(), *process.environ().values()])
            heard.extend(is_answered_with(client) for client in clients)
        finally:
            stop.set()

    def receive(rank: int, message: dict) -> None:
        if message["kind"] == "step":
            steps[rank].append(message["step"])
        elif message["kind"] == "doors":
            doors.update(message)
        elif message["kind"] == "recorded" and rank == 1:
            threading.Thread(target=intrude, args=[bytes.fromhex(message["frame"])]).start()
        elif message["kind"] != "recorded":
            others.append(message)

    first, second = run_local(partial(work, backend), 2, backend=backend, on_message=receive, stop=stop)
    assert first == second == [2.0 * step + 1 for step in range(len(first))]
    assert steps[0] == steps[1] == list(range(len(first)))
    assert others == []
    assert len(heard) >= 200
    for answer in heard:
        assert len(answer) == 16 or answer == b"" or answer.startswith(b"HTTP/1.1 4")
    told = capfd.readouterr()
    for secret in (doors["token"], doors["secret"]):
        assert not any(secret in text for text in [*visible, told.out, told.err])
