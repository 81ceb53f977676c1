"""Tensors that ranks of one host have in common: three processes of this machine, on one host or on two."""

import os
from functools import partial
from pathlib import Path

import torch

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Backend, shared_copies, split_by_memory

ROUNDS = 200


def exercise(backend: Backend, rank: Rank) -> dict:
    os.environ["SPARKDL_HOST"] = f"host {rank.rank % 2}"
    found: dict = {}
    with backend.connect() as world:
        host, leaders = split_by_memory(world)
        found["sizes"] = host.size, leaders.size
        small, table = shared_copies(host, [torch.full((3,), float(rank.rank)).double(), torch.zeros(1000, 4).half()])
        found["first rank's"] = small.tolist()
        own = torch.arange(host.rank, 1000, 2)  # rows that nobody else touches
        gradient = torch.sparse_coo_tensor(own[None], torch.ones(len(own), 4).half(), table.shape)
        for _ in range(ROUNDS):
            table.add_(gradient)
        host.barrier()
        found["rows"] = table.unique().tolist()
        world.barrier()
        found["named"] = [path.name for path in Path("/dev/shm").iterdir() if "sparkdl" in path.name]
    return found


def test_ranks_of_a_host_write_to_one_tensor_and_lose_nothing_where_they_do_not_meet(backend: Backend) -> None:
    first, alone, second = run_local(partial(exercise, backend), 3, backend=backend)
    assert [each["sizes"] for each in (first, alone, second)] == [(2, 2), (1, 2), (2, 1)]
    assert first["first rank's"] == second["first rank's"] == [0, 0, 0] and alone["first rank's"] == [1, 1, 1]
    assert first["rows"] == second["rows"] == [ROUNDS]
    assert alone["rows"] == [0, ROUNDS]


def test_shared_memory_has_no_name_that_could_be_left_behind(backend: Backend) -> None:
    assert [each["named"] for each in run_local(partial(exercise, backend), 1, backend=backend)] == [[]]
