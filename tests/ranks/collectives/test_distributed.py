"""What Gloo leaves open, and torch.distributed needs: dead peers end the wait of all, and strangers are found out."""

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from pathlib import Path

import psutil
import pytest
import torch

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Communicator, Messenger, TorchBackend, TorchCommunicator
from sparkdl.errors import RankError

BACKEND = TorchBackend()


def test_a_killed_rank_ends_the_exchange_on_all_others_within_a_second(tmp_path: Path) -> None:
    def exchange(communicator: Communicator) -> None:
        for number in range(10_000):
            waits = [communicator.start_mean([torch.ones(300_000)], name=f"{number}.{part}") for part in range(3)]
            for wait in waits:
                wait()
            if communicator.rank == 2 and number == 20:
                (tmp_path / "killed").write_text(str(time.time()))
                os.kill(os.getpid(), signal.SIGKILL)

    def work(rank: Rank) -> None:
        try:
            with BACKEND.connect() as communicator:
                exchange(communicator)
        finally:
            (tmp_path / f"ended by {rank.rank}").write_text(str(time.time()))

    with pytest.raises(RankError, match="killed, out of memory, or crashed") as caught:
        run_local(work, 4, backend=BACKEND)
    assert caught.value.rank == 2
    killed = float((tmp_path / "killed").read_text())
    assert all(float((tmp_path / f"ended by {rank}").read_text()) - killed < 1 for rank in (0, 1, 3))


def test_groups_that_are_split_from_groups_at_the_same_time_do_not_mix() -> None:
    def work(rank: Rank) -> list[float]:
        with BACKEND.connect() as world:
            pairs = [world.split(rank.rank // 2).split(0) for _ in range(5)]
            return [pair.all_reduce(torch.tensor(float(rank.rank)), op="sum").item() for pair in pairs]

    assert run_local(work, 4, backend=BACKEND) == [[1.0] * 5] * 2 + [[5.0] * 5] * 2


def test_rows_go_to_the_ranks_that_they_are_for_also_where_some_get_none() -> None:
    sent = [[2, 1, 0], [0, 0, 3], [0, 1, 0]]

    def work(rank: Rank) -> list[list[float]]:
        with BACKEND.connect() as world:
            assert isinstance(world, TorchCommunicator)
            own = sent[rank.rank]
            rows = torch.tensor([[10 * rank.rank + place, 0.5] for place in range(sum(own))], dtype=torch.bfloat16)
            taken = [each[rank.rank] for each in sent]
            arrived: list[list[float]] = world.all_to_all(rows, sent=own, taken=taken).tolist()
            return arrived

    found = run_local(work, 3, backend=BACKEND)
    assert found == [[[0, 0.5], [1, 0.5]], [[2, 0.5], [20, 0.5]], [[10, 0.5], [11, 0.5], [12, 0.5]]]


def test_ranks_that_do_not_know_the_secret_are_found_out_before_anything_is_exchanged() -> None:
    def work(rank: Rank) -> str:
        if rank.rank == 1:  # as far as the meeting place is concerned one of the run's, and no further
            return _with_another_secret()
        with BACKEND.connect():
            return "connected"

    with pytest.raises(RankError, match="the process that connected as rank 1 does not know the run's secret"):
        run_local(work, 2, backend=BACKEND)


def _with_another_secret() -> str:
    from sparkdl.collectives import distributed

    prove = distributed._prove
    distributed._prove = lambda communicator, token: prove(communicator, b"another")
    try:
        with BACKEND.connect():
            return "connected"
    except distributed.ExchangeError:
        time.sleep(1)  # so that the other's error is the first
        raise
    finally:
        distributed._prove = prove


class Stranger(threading.Thread):
    """Connects to every port that a rank opens, as soon as it is there, and counts as Gloo's peers do at first."""

    def __init__(self, ranks: int, done: Path) -> None:
        """``done`` is written when the stranger has been at the ports of so many new processes."""
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.ranks, self.done = ranks, done
        self.connections: list[socket.socket] = []

    def run(self) -> None:
        others = known = _listening()
        while not self.stop.wait(0.005):
            for pid, port in _listening() - known:
                known = known | {(pid, port)}
                for number in range(8):
                    self.connections.append(socket.create_connection(("127.0.0.1", port)))
                    self.connections[-1].sendall(struct.pack("<q", number))
            if len({pid for pid, _ in known - others}) == self.ranks:
                self.done.touch()


def _listening() -> set[tuple[int, int]]:
    """Which processes that this one has started listen at which ports: ranks, and what other tests have left."""
    ports = set()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            connections = process.net_connections("tcp")
            ports |= {(process.pid, each.laddr.port) for each in connections if each.status == psutil.CONN_LISTEN}
    return ports


def test_a_stranger_that_takes_a_ranks_place_ends_the_run_with_an_error_that_says_so(tmp_path: Path) -> None:
    been_there = tmp_path / "been there"

    def work(rank: Rank) -> None:
        from sparkdl.collectives import distributed

        distributed.PROOF_SECONDS = 2
        while rank.rank == 0 and not been_there.exists():  # at the ports of the others, the stranger is earlier
            time.sleep(0.02)
        with BACKEND.connect():
            pass

    stranger = Stranger(2, been_there)
    stranger.start()
    try:
        with pytest.raises(RankError, match="another process on their network has connected in its place"):
            run_local(work, 3, backend=BACKEND)
    finally:
        stranger.stop.set()
        stranger.join()
        for connection in stranger.connections:
            connection.close()


def test_a_rank_speaks_to_a_single_other_one() -> None:
    def work(rank: Rank) -> list[int]:
        with BACKEND.connect() as communicator:
            assert isinstance(communicator, Messenger)
            found = torch.empty(2, dtype=torch.int64)
            before, after = (rank.rank - 1) % rank.size, (rank.rank + 1) % rank.size
            received = communicator.start_receive(found, source=before)
            communicator.start_send(torch.full((2,), rank.rank), target=after)()
            received()
            return found.tolist()

    assert run_local(work, 3, backend=BACKEND) == [[2, 2], [0, 0], [1, 1]]
