"""Averagers among real ranks: one launch for every topology and number of ranks, one for each backend's own pieces."""

import os
from functools import partial

import pytest
import torch

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Backend, Messenger, TorchBackend, create_averager
from sparkdl.collectives.averaging import advance, finish
from sparkdl.settings.averaging import Averaging, CompressedAveraging

TOPOLOGIES = ("butterfly", "server", "sharded_servers", "two_levels")
HALVES = {"horovod": ["float16"], "torch": ["float16", "bfloat16"]}
GROUPS = [lambda rank: 0, lambda rank: rank // 5, lambda rank: rank // 4, lambda rank: rank // 2]
"""How eight ranks are split into groups of 8, of 5 and 3, of 4, and of 2."""


def average(averager, *buckets: list[torch.Tensor]) -> None:
    exchanges = [averager.exchange(bucket, key=f"bucket.{number}") for number, bucket in enumerate(buckets)]
    for exchange in exchanges:
        advance(exchange)
    finish(exchanges)


def errors_of_all_topologies(rank: Rank) -> dict[str, float]:
    """By topology and number of ranks: how far the mean is from the one that the backend finds."""
    os.environ["SPARKDL_HOST"] = f"host {rank.rank // 3}"  # as if eight ranks were on three hosts
    errors = {}
    with TorchBackend().connect() as world:
        assert isinstance(world, Messenger)
        for color in GROUPS:
            group = world.split(color(rank.rank))
            for topology in TOPOLOGIES:
                averager = create_averager(Averaging(topology=topology), group)
                torch.manual_seed(rank.rank)
                shapes = [[(300_000,)], [(7, 5), (3,)], [(2,)], [()]]
                own = [[torch.randn(shape) for shape in bucket] for bucket in shapes]
                for _ in range(3):
                    buckets = [[tensor.clone() for tensor in bucket] for bucket in own]
                    average(averager, *buckets)
                found, expected = flat(buckets), group.all_reduce(flat(own))
                errors[f"{topology} of {group.size}"] = float((found - expected).abs().max())
                assert all(torch.equal(each, found) for each in group.all_gather(found))
    return errors


def flat(buckets: list[list[torch.Tensor]]) -> torch.Tensor:
    return torch.cat([tensor.flatten() for bucket in buckets for tensor in bucket])


def test_every_topology_finds_the_mean_of_every_number_of_ranks_up_to_rounding() -> None:
    found = run_local(errors_of_all_topologies, 8, backend=TorchBackend())
    errors = {name: error for each in found for name, error in each.items()}
    assert set(errors) == {f"{topology} of {size}" for topology in TOPOLOGIES for size in (2, 3, 4, 5, 8)}
    assert max(errors.values()) < 1e-6


def exercise(backend: Backend, rank: Rank) -> dict:
    found: dict = {}
    with backend.connect() as communicator:
        messages = [torch.full((3 + number,), rank.rank + number, dtype=torch.uint8) for number in range(4)]
        arriving = [communicator.start_all_gather(each, name=f"{number}") for number, each in enumerate(messages)]
        found["gathered at once"] = [[each.tolist() for each in arrived()] for arrived in arriving]
        for kind in HALVES[backend.name]:
            values = [torch.tensor([1.0, 3.0, 6e4]) + rank.rank, torch.ones(2, 3)]
            average(create_averager(CompressedAveraging(compression=kind), communicator), values)
            found[kind] = [value.tolist() for value in values]
    return found


@pytest.fixture(scope="module")
def found(backend: Backend) -> list[dict]:
    return run_local(partial(exercise, backend), 2, backend=backend)


def test_messages_that_are_gathered_at_once_come_in_their_order(found) -> None:
    expected = [[[rank + number] * (3 + number) for rank in range(2)] for number in range(4)]
    assert all(each["gathered at once"] == expected for each in found)


def test_halves_are_averaged_by_the_backend_itself(found, backend: Backend) -> None:
    for each in found:
        for kind in HALVES[backend.name]:
            assert each[kind][0] == pytest.approx([1.5, 3.5, 6e4], rel=5e-3)
            assert each[kind][1] == [[1.0] * 3] * 2
