"""Which worker gets which portion, through real calls."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sparkdl.parameters import Connection
from sparkdl.settings import Cluster
from sparkdl.training.asynchronous.coordinator import Coordinator

Asked = dict[str, Any]


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    with Coordinator("127.0.0.1", "127.0.0.1", Cluster(), staleness=None) as coordinator:
        yield coordinator


@pytest.fixture
def line(coordinator: Coordinator) -> Iterator[Connection]:
    invitation = coordinator.invitation
    connection = Connection(invitation.address, invitation.credentials, timeout=invitation.timeout)
    yield connection
    connection.close()


def join(line: Connection) -> Asked:
    """What worker 0 says of itself from now on."""
    me = {"role": "worker", "number": 0}
    welcome = line.call("join", **me, attempt=0, host="127.0.0.1", machine="here", process=1)
    return {**me, "attempt": welcome["attempt"]}


def test_a_worker_that_was_killed_while_it_waited_for_a_portion_gets_none(
    coordinator: Coordinator, line: Connection
) -> None:
    """Its call still waits for an answer when another one has its number, and then something is dealt."""
    killed = join(line)
    with ThreadPoolExecutor(1) as threads:
        for _ in range(5):  # of calls that may have come too late to wait
            waiting = threads.submit(line.call, "next", **killed)
            again = join(line)
            portions = coordinator.deal([{"kind": "evaluate"}])
            assert waiting.result() == {"end": True, "wait": True}
            found = line.call("next", **again)
            assert found["portion"] == 0
            line.call("finish", **again, deal=found["deal"], portion=0, result="done")
            assert portions.results == {0: "done"}
            killed = again
