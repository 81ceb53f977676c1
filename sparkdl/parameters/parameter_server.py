"""A parameter server: a :class:`Part` behind Arrow Flight. Runs in a task."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import flight

from sparkdl.parameters.calls import Credentials, Endpoint
from sparkdl.parameters.messages import SCHEMA, receive, stream
from sparkdl.parameters.part import Part, Push
from sparkdl.parameters.partition import Memory
from sparkdl.parameters.unix_socket import open_socket

__all__ = ["ParameterServer"]


class ParameterServer(Endpoint):
    """Workers pull values by Flight's ``do_get`` and push by ``do_put``; ``answers`` has further calls."""

    def __init__(
        self,
        host: str,
        credentials: Credentials,
        part: Part,
        answers: Mapping[str, Callable[..., Mapping[str, Any] | None]],
    ) -> None:
        super().__init__(host, credentials, answers)
        self._part = part
        self._received: defaultdict[int | None, list[Memory]] = defaultdict(list)
        """By fragment: buffers of merged pushes, for reuse, because allocation takes longer than merging."""
        self._unix_socket = open_socket(self, self.address, credentials.token, self._middleware)

    def shutdown(self) -> None:
        """Stop after the calls in progress are answered."""
        if self._unix_socket:
            self._unix_socket.shutdown()
        super().shutdown()

    def do_get(self, context: Any, ticket: Any) -> Any:
        """The values, or those of the fragment in the ticket, as bytes; their version is in the schema's metadata."""
        version, content = self._part.pull(json.loads(ticket.ticket))
        schema = SCHEMA.with_metadata({"version": str(version)})
        batches = (batch.replace_schema_metadata(schema.metadata) for batch in stream(content))
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(schema, batches))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Merge the push that the descriptor describes; answers whether it counted."""
        push = Push(*json.loads(descriptor.command))
        free = self._received[push.fragment]
        try:
            memory = free.pop()
        except IndexError:
            memory = self._part.new_memory(push.fragment)
        receive(reader, memory.content)
        counted = self._part.push(push, memory)
        free.append(memory)
        writer.write(json.dumps(counted).encode())
