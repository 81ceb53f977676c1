"""Workers and servers over the real transport: values arrive whole, strangers stay out, a lost server is replaced."""

import time
from collections.abc import Iterator

import pytest
import torch
from pyarrow import flight

from sparkdl.parameters import RULES, Connection, Credentials, ParameterClient, ParameterServer, Part, Partition, Push

VALUES = {"weight": torch.arange(600_001.0), "bias": torch.ones(3)}
PARTITION = Partition(VALUES, {}, servers=2)
CREDENTIALS = Credentials.create()


def serve(server: int, credentials: Credentials = CREDENTIALS) -> ParameterServer:
    memory = PARTITION.new_memory(server)
    PARTITION.cut(VALUES, server, memory)
    part = Part(PARTITION, server, memory, RULES["sgd"])
    return ParameterServer("127.0.0.1", credentials, part, {"tally": part.tally})


class Servers:
    """Two of them, and where they are."""

    def __init__(self) -> None:
        self.running = [serve(0), serve(1)]

    def find(self, server: int, lost: str | None) -> str:
        if self.running[server].address == lost:
            self.running[server] = serve(server)
        return self.running[server].address


@pytest.fixture
def servers() -> Iterator[Servers]:
    found = Servers()
    yield found
    for server in found.running:
        server.shutdown()


@pytest.fixture
def client(servers: Servers) -> Iterator[ParameterClient]:
    found = ParameterClient(PARTITION, CREDENTIALS, servers, timeout=5)
    yield found
    found.close()


def pulled(client: ParameterClient) -> dict[str, torch.Tensor]:
    values = {name: torch.empty_like(tensor) for name, tensor in VALUES.items()}
    client.pull()
    client.copy_to(values)
    return values


def test_values_come_whole_and_a_push_changes_them_once(client: ParameterClient) -> None:
    assert torch.equal(pulled(client)["weight"], VALUES["weight"])
    push = Push(0, 0, 0, 0, rate=0.5, sums=(1.0,))
    gradient = {"weight": torch.ones(600_001)}
    assert [client.push(gradient, push, [0, 0]) for _ in range(2)] == [True, False]
    after = pulled(client)
    assert torch.equal(after["weight"], VALUES["weight"] - 0.5)
    assert torch.equal(after["bias"], VALUES["bias"])
    assert client.pull() == [1, 1]


def test_a_lost_server_is_looked_for_again_and_the_call_repeated(servers: Servers, client: ParameterClient) -> None:
    client.pull()
    servers.running[1].shutdown()
    assert torch.equal(pulled(client)["weight"], VALUES["weight"])


def test_no_proxy_is_asked_for_a_task_of_the_run(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sparkdl.parameters.calls.find_socket", lambda *_: None)  # as from another host
    assert Connection(servers.running[0].address, CREDENTIALS, timeout=5).call("tally") is not None


@pytest.mark.parametrize(
    ("credentials", "cause"),
    [
        (
            Credentials(CREDENTIALS.certificate, b"", "another"),
            "refuses this process: the token is not the one of this",
        ),
        (Credentials.create(), "does not have the certificate of this run"),
    ],
    ids=["token", "certificate"],
)
def test_who_does_not_belong_to_the_run_is_told_so_at_once(
    servers: Servers, credentials: Credentials, cause: str
) -> None:
    started = time.monotonic()
    with pytest.raises(PermissionError, match=cause):
        Connection(servers.running[0].address, credentials, timeout=5).call("tally")
    client = ParameterClient(PARTITION, credentials, servers, timeout=5)
    with pytest.raises(PermissionError, match=cause):
        client.pull()
    with pytest.raises(PermissionError, match=cause):
        client.push(VALUES, Push(0, 0, 0, 0, rate=1.0, sums=()), [0, 0])
    assert time.monotonic() - started < 5


def test_a_stranger_without_tls_learns_nothing_and_stops_nothing(servers: Servers, client: ParameterClient) -> None:
    stranger = flight.FlightClient(f"grpc://{servers.running[0].address}")
    with pytest.raises(flight.FlightUnavailableError):
        stranger.do_get(flight.Ticket(b"values"), flight.FlightCallOptions(timeout=2)).read_all()
    assert torch.equal(pulled(client)["weight"], VALUES["weight"])


def test_another_model_is_refused_with_the_reason(servers: Servers) -> None:
    larger = Partition({"weight": torch.zeros(9)}, {}, servers=2)
    client = ParameterClient(larger, CREDENTIALS, servers, timeout=5)
    with pytest.raises((RuntimeError, ValueError), match=r"worker and server have built different models"):
        client.pull()
    with pytest.raises(RuntimeError, match=r"worker and server have built different models"):
        client.push({}, Push(0, 0, 0, 0, rate=1.0, sums=()), [0, 0])
