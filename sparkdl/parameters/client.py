"""A worker's client of the parameter servers: pulls values and pushes changes. Runs in a task."""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

import torch
from pyarrow import flight

from sparkdl.parameters.calls import Connection, Credentials
from sparkdl.parameters.messages import SCHEMA, receive, stream
from sparkdl.parameters.part import Push
from sparkdl.parameters.partition import Memory, Partition

__all__ = ["Directory", "ParameterClient"]

T = TypeVar("T")


class Directory(Protocol):
    """Finds servers."""

    def find(self, server: int, lost: str | None) -> str:
        """The address of a server; waits until it differs from ``lost``, the address that no longer answers."""


class ParameterClient:
    """Calls all servers at the same time. If a server is lost, waits for its replacement and repeats the call.

    One thread uses it at a time.
    """

    def __init__(self, partition: Partition, credentials: Credentials, directory: Directory, *, timeout: float) -> None:
        """A server that does not answer for ``timeout`` seconds is considered lost."""
        self._partition, self._credentials, self._directory, self._timeout = partition, credentials, directory, timeout
        self._lines: list[Connection | None] = [None] * partition.servers
        self._received: dict[int | None, list[Memory]] = {}
        """By fragment: the buffers for values of servers, reused for each pull."""
        self._sent: dict[int | None, list[Memory]] = {}
        """By fragment: the buffers for pushes to servers."""
        self._pulled: list[Memory] = []
        """The buffers of the last pull."""
        self._pool = ThreadPoolExecutor(partition.servers, thread_name_prefix="sparkdl-parameters")
        self.bytes_moved = 0
        """Bytes of all pulls and pushes."""

    def pull(self, fragment: int | None = None) -> list[int]:
        """Fetch all values, or those of a fragment, for :meth:`copy_to`; returns their versions by server."""
        self._pulled = self._memories(self._received, fragment)

        def fetch(server: int, line: Connection) -> int:
            return self._pull(line, fragment, self._pulled[server])

        self._count(self._pulled)
        return self._at_all_servers(fetch)

    def copy_to(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Overwrite tensors, in place, with what was pulled last."""
        self._partition.join(self._pulled, tensors)

    def push(self, tensors: Mapping[str, torch.Tensor], push: Push, versions: list[int]) -> bool:
        """Send tensors to be merged, computed from values of these versions; returns whether the push counted.

        Missing tensors count as zeros. When this returns, all servers have the push, or had it before.
        """
        memories = self._memories(self._sent, push.fragment)
        for server, memory in enumerate(memories):
            self._partition.cut(tensors, server, memory)

        def send(server: int, line: Connection) -> bool:
            return self._push(line, push._replace(version=versions[server]), memories[server])

        self._count(memories)
        return self._at_all_servers(send)[0]

    def applied(self, round: int, portion: int) -> int:
        """How many pushes of a portion all servers have merged."""

        def ask(server: int, line: Connection) -> int:
            return int(line.call("applied", round=round, portion=portion)["pushes"])

        return min(self._at_all_servers(ask))

    def close(self) -> None:
        """Close all connections."""
        self._pool.shutdown()
        for line in filter(None, self._lines):
            line.close()

    def _memories(self, known: dict[int | None, list[Memory]], fragment: int | None) -> list[Memory]:
        """Buffers for the messages between this worker and each server, allocated once."""
        if fragment not in known:
            known[fragment] = [self._partition.new_memory(each, fragment) for each in range(self._partition.servers)]
        return known[fragment]

    def _count(self, memories: list[Memory]) -> None:
        self.bytes_moved += sum(memory.content.numel() for memory in memories)

    def _at_all_servers(self, do: Callable[[int, Connection], T]) -> list[T]:
        return list(self._pool.map(lambda server: self._persist(server, do), range(self._partition.servers)))

    def _persist(self, server: int, do: Callable[[int, Connection], T]) -> T:
        lost: str | None = None
        while True:
            line = self._lines[server]
            if line is None:
                address = self._directory.find(server, lost)
                line = self._lines[server] = Connection(address, self._credentials, timeout=self._timeout)
            try:
                return do(server, line)
            except ConnectionError:
                lost, self._lines[server] = line.address, None
                line.close()

    def _pull(self, line: Connection, fragment: int | None, memory: Memory) -> int:
        with line.explained():
            reader = line.client.do_get(flight.Ticket(json.dumps(fragment).encode()), line.options)
            version = int(reader.schema.metadata[b"version"])
            receive(reader, memory.content)
        return version

    def _push(self, line: Connection, push: Push, memory: Memory) -> bool:
        with line.explained():
            descriptor = flight.FlightDescriptor.for_command(json.dumps(push).encode())
            writer, answers = line.client.do_put(descriptor, SCHEMA, line.options)
            with writer:
                for batch in stream(memory.content):
                    writer.write_batch(batch)
                writer.done_writing()
                answer: Any = answers.read()
        return bool(json.loads(answer.to_pybytes()))
