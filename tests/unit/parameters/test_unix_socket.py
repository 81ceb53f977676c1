"""The Unix socket of a server: tasks of its host take it, and nobody else gets in or stands in for it."""

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
import torch
from pyarrow import flight

from sparkdl.parameters import RULES, Credentials, ParameterClient, ParameterServer, Part, Partition
from sparkdl.parameters.unix_socket import find_socket, open_socket

VALUES = {"weight": torch.arange(600_001.0)}
PARTITION = Partition(VALUES, {}, servers=1)
CREDENTIALS = Credentials.create()


class Server(ParameterServer):
    """One, which clients find."""

    def __init__(self) -> None:
        memory = PARTITION.new_memory(0)
        PARTITION.cut(VALUES, 0, memory)
        super().__init__("127.0.0.1", CREDENTIALS, Part(PARTITION, 0, memory, RULES["sgd"]), {})

    def find(self, server: int, lost: str | None) -> str:
        return self.address


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as found:
        yield found


@pytest.fixture
def path(server: Server) -> Path:
    found = find_socket(server.address, CREDENTIALS.token)
    assert found
    return found


def calls_through(path: Path) -> int:
    """How many lines there are."""
    lines = psutil.Process().net_connections(kind="unix")
    return sum(line.laddr == str(path) for line in lines) - 1  # but for the socket that listens


def values_of(server: Server) -> torch.Tensor:
    client = ParameterClient(PARTITION, CREDENTIALS, server, timeout=5)
    values = {"weight": torch.empty(600_001)}
    client.pull()
    client.copy_to(values)
    client.close()
    return values["weight"]


def test_a_task_of_the_same_host_goes_through_the_unix_socket(server: Server, path: Path) -> None:
    client = ParameterClient(PARTITION, CREDENTIALS, server, timeout=5)
    client.pull()
    assert calls_through(path) == 1
    client.close()


def test_a_server_that_ends_removes_its_socket(server: Server, path: Path) -> None:
    server.shutdown()
    assert not path.parent.exists()
    assert find_socket(server.address, CREDENTIALS.token) is None


def test_without_the_token_nobody_finds_the_socket_or_gets_in(server: Server, path: Path) -> None:
    assert find_socket(server.address, "another") is None
    stranger = flight.FlightClient(f"grpc+unix://{path}")
    with pytest.raises(flight.FlightUnauthenticatedError, match="the token is not the one of this run"):
        stranger.do_get(flight.Ticket(b"null")).read_all()


def test_a_folder_that_others_can_enter_is_not_trusted_with_the_token(server: Server, path: Path) -> None:
    path.parent.chmod(0o777)
    assert find_socket(server.address, CREDENTIALS.token) is None
    assert torch.equal(values_of(server), VALUES["weight"])  # by the other way


def test_a_socket_that_a_killed_server_has_left_is_not_used(server: Server, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        path.unlink()
        left.bind(str(path))
    assert path.exists()
    assert find_socket(server.address, CREDENTIALS.token) is None


def test_another_host_that_has_the_same_folder_keeps_to_the_network(server: Server) -> None:
    elsewhere = "127.0.0.2:1"  # from here, the way there begins at 127.0.0.1
    opened = open_socket(server, elsewhere, CREDENTIALS.token, {})
    assert opened
    assert find_socket(elsewhere, CREDENTIALS.token) is None
    opened.shutdown()


@pytest.mark.parametrize("name", ["is missing", "long" * 20, ""], ids=["missing", "too long", "with a space"])
def test_where_there_can_be_no_socket_there_is_the_network(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory(prefix="a b ") as short:
        folder = Path(short, name)
        if name != "is missing":
            folder.mkdir(exist_ok=True)
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        with Server() as server:
            assert torch.equal(values_of(server), VALUES["weight"])
            assert not folder.exists() or not any(folder.iterdir())


def test_what_a_killed_server_left_is_removed_by_the_next_one_and_nothing_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        killed, opening, open_one, foreign = (
            Path(folder, f"sparkdl-{name}") for name in ("socket-1", "socket-2", "socket-3", "x")
        )
        for made in (killed, opening, open_one, foreign):
            made.mkdir()
        for made in (killed, foreign):
            with socket.socket(socket.AF_UNIX) as left:  # closed, it leaves its file
                left.bind(str(made / "server"))
        listening.bind(str(open_one / "server"))
        listening.listen()
        for made in (killed, open_one, foreign):
            os.utime(made, (0, 0))
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with Server():
            assert not killed.exists()
            assert all(made.exists() for made in (opening, open_one, foreign))
