"""What carries parameters beside a plain socket, and how much of it hides under computing: two processes."""

import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from os import getppid, sched_getaffinity
from statistics import median

import torch
from pydantic import BaseModel
from torch import nn

from benchmarks.report import Report, Target
from sparkdl.cluster import Rank, run_local
from sparkdl.cluster.devices import bind
from sparkdl.collectives import Communicator, TorchBackend
from sparkdl.parameters import RULES, Credentials, ParameterClient, ParameterServer, Part, Partition, Push
from sparkdl.settings.strategies import DownpourOptions
from sparkdl.training.asynchronous.exchange import StepNote
from sparkdl.training.asynchronous.methods import create_exchange

__all__ = ["Hidden", "Transport", "measure", "reports"]

LOOPBACK = "127.0.0.1"
ELSEWHERE = "127.0.0.2"  # as another host is: a worker at the first address has to take the network to this one
BACKEND = TorchBackend()
SQUARE = 512  # of the matrices that a step multiplies
RATE = 0.01
PATIENCE = 60.0  # seconds


class Hidden(BaseModel):
    """Steps of Downpour while parameters travel."""

    period: int
    """Steps from one push and fetch to the next."""
    step: float
    """Seconds of a step."""
    waited: float
    """Of which it has waited for what travels."""


class Transport(BaseModel):
    """What was measured."""

    megabytes: float
    flight: list[float]
    """Seconds of a pull and a push as between hosts, with TLS and token."""
    nearby: list[float]
    """The same as within a host, through a Unix socket."""
    plain: list[float]
    """Seconds in which a socket carries as much in both directions, one after the other."""
    alone: float
    """Seconds of a step without servers: it computes, and SGD steps."""
    hidden: list[Hidden]


def measure(*, size: int, rounds: int, periods: Sequence[int], exchanges: int, step: float) -> Transport:
    """Exchange ``size`` bytes so often, then train with each of the periods until so many exchanges are over.

    A step computes for ``step`` seconds of a core. Runs on the driver.
    """
    ask = partial(_ask, size, rounds, periods, exchanges, step)
    found = run_local(partial(_either, size, Credentials.create(), ask), 2, backend=BACKEND)[1]
    assert found
    return found


def _either(
    size: int,
    credentials: Credentials,
    ask: "Callable[[ParameterClient, ParameterClient, socket.socket], Transport]",
    rank: Rank,
) -> Transport | None:
    """Serve or ask. Called on each rank; like an asynchronous task, none is bound to a core of its own."""
    bind(sched_getaffinity(getppid()))
    torch.set_num_threads(1)
    partition = Partition({"weight": _parameter(size)}, {}, servers=1)
    with BACKEND.connect() as world:
        if rank.rank == 0:
            _serve(world, partition, credentials)
            return None
        addresses, port = world.broadcast_object(None)
        client, nearby = (ParameterClient(partition, credentials, _Found(each), timeout=PATIENCE) for each in addresses)
        with socket.create_connection((LOOPBACK, port)) as line:
            found = ask(client, nearby, line)
        client.close()
        nearby.close()
        world.barrier()
        return found


def _serve(world: Communicator, partition: Partition, credentials: Credentials) -> None:
    memory = partition.new_memory(0)
    memory.content.zero_()
    part = Part(partition, 0, memory, RULES["sgd"])
    with (
        ParameterServer(ELSEWHERE, credentials, part, {}) as server,
        ParameterServer(LOOPBACK, credentials, part, {}) as nearby,
        socket.create_server((LOOPBACK, 0)) as listening,
    ):
        world.broadcast_object(([server.address, nearby.address], listening.getsockname()[1]))
        line, _ = listening.accept()
        with line:
            content = memoryview(bytearray(part.bytes))
            while line.recv(1):
                line.sendall(content)
                _receive(line, content)
                line.sendall(b"!")
        world.barrier()


class _Found:
    """The only server there is."""

    def __init__(self, address: str) -> None:
        self._address = address

    def find(self, server: int, lost: str | None) -> str:
        if lost:
            raise RuntimeError(f"the server at {lost} is gone")
        return self._address


def _ask(
    size: int,
    rounds: int,
    periods: Sequence[int],
    exchanges: int,
    step: float,
    client: ParameterClient,
    nearby: ParameterClient,
    line: socket.socket,
) -> Transport:
    """All measurements, on the side of the worker."""
    gradient = {"weight": _parameter(size)}
    content = memoryview(bytearray(size // 4 * 4))
    plain: list[float] = []
    seconds: dict[ParameterClient, list[float]] = {client: [], nearby: []}
    for number in range(1 + rounds):
        started = time.perf_counter()
        line.sendall(b"?")
        _receive(line, content)
        line.sendall(content)
        line.recv(1)
        plain.append(time.perf_counter() - started)
        for push, (each, taken) in enumerate(seconds.items()):
            started = time.perf_counter()
            versions = each.pull()
            each.push(gradient, Push(0, push, number, 0, RATE, ()), versions)
            taken.append(time.perf_counter() - started)
    compute = _computing(step)
    weights = _parameter(size)
    alone = []
    for _ in range(exchanges * max(periods)):
        started = time.perf_counter()
        compute()
        weights.sub_(gradient["weight"], alpha=RATE)
        alone.append(time.perf_counter() - started)
    hidden = [_hidden(size, client, compute, period, exchanges) for period in periods]
    return Transport(
        megabytes=size / 1e6,
        flight=seconds[client][1:],  # the first round opens lines and touches memory
        nearby=seconds[nearby][1:],
        plain=plain[1:],
        alone=median(alone),
        hidden=hidden,
    )


def _hidden(size: int, client: ParameterClient, compute: "Callable[[], None]", period: int, exchanges: int) -> Hidden:
    """Take steps as a worker does. The first exchange is not counted."""
    model = _Weights(size)
    options = DownpourOptions(rule="sgd", period=period, fetch_period=period)
    exchange = create_exchange(
        options, model, client, lambda: torch.optim.SGD(model.parameters()), workers=1, pace=None
    )
    started = before = 0.0
    for number in range((1 + exchanges) * period):
        if number == period:
            started, before = time.perf_counter(), exchange.seconds_exchanging
        exchange.begin_step()
        compute()
        push = Push(period, 0, number // period, 0, RATE, ()) if (number + 1) % period == 0 else None
        exchange.finish_step(StepNote(RATE, (), push))
    steps = exchanges * period
    found = Hidden(
        period=period,
        step=(time.perf_counter() - started) / steps,
        waited=(exchange.seconds_exchanging - before) / steps,
    )
    exchange.finish()
    exchange.close()
    return found


class _Weights(nn.Module):
    """A model of so many bytes, with its gradient."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(_parameter(size))
        self.weight.grad = _parameter(size)


def _computing(seconds: float) -> "Callable[[], None]":
    """Something that takes so long on one core: multiplications of matrices."""
    left, right = torch.rand(SQUARE, SQUARE), torch.rand(SQUARE, SQUARE)

    def multiply(times: int) -> None:
        for _ in range(times):
            torch.mm(left, right)

    multiply(10)
    times = 100
    started = time.thread_time()
    multiply(times)
    return partial(multiply, max(1, round(seconds * times / (time.thread_time() - started))))


def _parameter(size: int) -> torch.Tensor:
    return torch.zeros(size // 4)


def _receive(line: socket.socket, content: memoryview) -> None:
    begin = 0
    while begin < len(content):
        begin += line.recv_into(content[begin:])


def reports(found: Transport) -> list[Report]:
    """What an exchange takes, and what is left of it beside computing."""
    flight, plain = median(found.flight), median(found.plain)
    ways = {
        "plain socket": found.plain,
        "Arrow Flight, TLS and token": found.flight,
        "Arrow Flight, Unix socket and token": found.nearby,
    }
    hidden = {each.period: 1 - each.waited * each.period / flight for each in found.hidden}
    last = found.hidden[-1].period
    return [
        Report(
            title=f"asynchronous: {found.megabytes:g} MB to another process and back",
            columns=["by", "ms", "fastest ms", "slowest ms", "share of a plain socket"],
            rows=[
                [name, 1e3 * median(each), 1e3 * min(each), 1e3 * max(each), plain / median(each)]
                for name, each in ways.items()
            ],
            targets=[Target("share of a plain socket", plain / flight, 0.3)],
            note=f"Medians of {len(found.flight)} pulls and pushes, taken in turn. With Flight, the server steps, too.",
        ),
        Report(
            title=f"asynchronous: steps of {1e3 * found.alone:.3g} ms while {found.megabytes:g} MB travel",
            columns=[
                "steps between two exchanges",
                "ms a step",
                "of which waiting",
                "share of an exchange not waited for",
            ],
            rows=[
                [str(each.period), 1e3 * each.step, 1e3 * each.waited, f"{hidden[each.period]:.0%}"]
                for each in found.hidden
            ],
            targets=[Target(f"share not waited for, an exchange every {last} steps", hidden[last], 0.8)],
            note="Steps become longer without waiting, too: a worker adds up gradients between two pushes, and both"
            " processes, with all that encrypts, share this machine's cores.",
        ),
    ]
