"""What ranks say to each other: two processes on this machine in one launch for most promises, three in another."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Backend, Communicator


def mean_of_many(communicator: Communicator) -> bool:
    """Whether tensors are right of which the ranks need several kilobytes to agree."""
    tensors = [torch.full((3,), float(communicator.rank + number)) for number in range(100)]
    communicator.start_mean(tensors, name="a message with a name of some length")()
    return all(bool((tensor == number + 0.5).all()) for number, tensor in enumerate(tensors))


TYPES = [torch.bool, torch.bfloat16, torch.complex64, torch.uint16, torch.int64]


class OfManyTypes(nn.Module):
    """Weights and buffers that Horovod has no type for, one without values, and one that lies in memory otherwise."""

    def __init__(self, value: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2, 3), float(value), dtype=torch.bfloat16).t())
        self.register_buffer("empty", torch.ones(0))
        self.register_buffer("expanded", torch.ones(1, 2, dtype=torch.bool).expand(3, 2), persistent=False)
        for number, dtype in enumerate(TYPES):
            self.register_buffer(f"buffer{number}", torch.full((2,), value).to(dtype), persistent=number % 2 == 0)


def of_many_types(communicator: Communicator) -> list[bool]:
    """Whether each tensor of another rank has arrived."""
    network, expected = OfManyTypes(communicator.rank), OfManyTypes(1)
    communicator.broadcast_module(network, root=1)
    pairs = zip([network.weight, *network.buffers()], [expected.weight, *expected.buffers()], strict=True)
    alone = [communicator.broadcast(torch.full((2,), communicator.rank).to(dtype), root=1) for dtype in TYPES]
    equal = [bool(torch.equal(ours, theirs)) for ours, theirs in pairs]
    return [*equal, *(bool(torch.equal(found, torch.ones(2).to(found.dtype))) for found in alone)]


def exercise(backend: Backend, rank: Rank) -> dict:
    found: dict = {}
    with backend.connect() as communicator:
        number = rank.rank + 1.0
        precise = torch.tensor([number, 1e-17 * number], dtype=torch.float64)
        found["rank and size"] = (communicator.rank, communicator.size)
        found["sum"] = communicator.all_reduce(precise, op="sum").tolist()
        found["mean"] = communicator.all_reduce(torch.tensor([number]), op="mean").tolist()
        found["unchanged"] = precise.tolist() == [number, 1e-17 * number]
        found["broadcast"] = communicator.broadcast(torch.tensor([number]), root=1).tolist()
        found["broadcast object"] = communicator.broadcast_object({"rank": rank.rank}, root=1)
        found["gathered"] = communicator.all_gather_object("x" * (rank.rank + 1))
        numbered = torch.full((2, 2), rank.rank, dtype=torch.bfloat16).t()
        found["tensors gathered"] = [each.tolist() for each in communicator.all_gather(numbered)]
        another_type = "text" if rank.rank else None
        found["another type"] = communicator.broadcast_object(another_type, root=1)
        found["types gathered"] = communicator.all_gather_object(another_type)
        communicator.barrier()
        found["of many"] = mean_of_many(communicator)
        found["of many types"] = of_many_types(communicator)
        found["half"] = communicator.all_reduce(torch.tensor([1.0 + rank.rank], dtype=torch.bfloat16)).float().tolist()
        large = torch.full((3,), 40_000.0, dtype=torch.float16)  # the sum of two is infinite
        found["large half"] = communicator.all_reduce(large).tolist()
        communicator.start_mean([large], name="large half")()
        found["large half in place"] = large.tolist()
        found["addresses"] = {each.laddr.ip for each in psutil.Process().net_connections("tcp")}

        torch.manual_seed(rank.rank)
        network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        network[1].running_mean.fill_(number)  # type: ignore[operator, union-attr]
        communicator.broadcast_module(network)
        found["parameters"] = [value.sum().item() for value in network.state_dict().values()]
        table = nn.Embedding(600_000, 4)  # more than goes in one piece
        communicator.broadcast_module(table, root=1)
        found["table"] = table.weight.detach().double().sum().item(), table.weight[-1].tolist()
    return found


@pytest.fixture(scope="module")
def found(backend: Backend) -> list[dict]:
    return run_local(partial(exercise, backend), 2, backend=backend)


def test_a_table_that_travels_in_pieces_is_the_same_everywhere(found) -> None:
    assert found[0]["table"] == found[1]["table"]


def test_ranks_of_one_machine_meet_on_loopback_whatever_the_machine_is_called(found) -> None:
    assert [each["addresses"] for each in found] == [{"127.0.0.1"}, {"127.0.0.1"}]


def test_ranks_are_numbered(found) -> None:
    assert [each["rank and size"] for each in found] == [(0, 2), (1, 2)]


def test_sums_and_means_are_exact_in_float64_and_leave_the_argument_alone(found) -> None:
    for each in found:
        assert each["sum"] == [3.0, 1e-17 * 1 + 1e-17 * 2]
        assert each["mean"] == [1.5]
        assert each["unchanged"]


def test_tensors_and_objects_of_one_rank_reach_all(found) -> None:
    for each in found:
        assert each["broadcast"] == [2.0]
        assert each["broadcast object"] == {"rank": 1}
        assert each["gathered"] == ["x", "xx"]
        assert each["tensors gathered"] == [[[0, 0], [0, 0]], [[1, 1], [1, 1]]]


def test_objects_may_have_another_type_on_every_rank(found) -> None:
    for each in found:
        assert each["another type"] == "text"
        assert each["types gathered"] == [None, "text"]


def test_weights_and_buffers_become_equal(found) -> None:
    first, second = found
    assert first["parameters"] == second["parameters"]


def test_what_is_sent_may_be_of_any_type(found) -> None:
    for each in found:
        assert all(each["of many types"]) and len(each["of many types"]) == 13
        assert each["half"] == [1.5]


def test_the_mean_of_halves_is_right_where_their_sum_is_infinite(found) -> None:
    for each in found:
        assert each["large half"] == each["large half in place"] == [40_000.0] * 3


def test_a_message_may_have_many_tensors(found) -> None:
    assert all(each["of many"] for each in found)


def test_what_a_rank_sends_runs_nothing_on_the_others(backend: Backend, tmp_path: Path) -> None:
    class Touch:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / f"executed by {os.getpid()}",))

    def exchange(rank: Rank) -> list[str]:
        with backend.connect() as communicator:
            value = Touch() if rank.rank == 0 else None
            return [_refusal(communicator.broadcast_object, value), _refusal(communicator.all_gather_object, value)]

    for refusals in run_local(exchange, 2, backend=backend):
        assert all("rank 0 sent something other than tensors and plain values" in text for text in refusals)
    assert not list(tmp_path.iterdir())


def _refusal(exchange: Callable[[object], object], value: object) -> str:
    try:
        return f"accepted: {exchange(value)}"
    except TypeError as error:
        return str(error)


def grouped(backend: Backend, rank: Rank) -> dict:
    """What the first two of three ranks, and the third alone, know of themselves and say to each other."""
    with backend.connect() as communicator:
        before = communicator.bytes_sent
        communicator.all_reduce(torch.ones(1000))
        communicator.start_mean([torch.ones(3), torch.ones(2)], name="two")()
        counted = communicator.bytes_sent - before
        group = communicator.split(color=rank.rank // 2)
        number = torch.tensor([float(rank.rank)])
        mean = torch.full((3,), float(rank.rank))
        group.start_mean([mean], name="mean")()
        return {
            "counted": counted,
            "waited": communicator.seconds_waited,
            "place": (group.rank, group.size),
            "sum": group.all_reduce(number, op="sum").item(),
            "mean": mean.tolist(),
            "gathered": [each.item() for each in group.all_gather(number)],
            "from the last": group.broadcast(number, root=group.size - 1).item(),
            "of all": communicator.all_reduce(number, op="sum").item(),
        }


def test_a_group_of_ranks_speaks_without_the_others(backend: Backend) -> None:
    first, second, third = run_local(partial(grouped, backend), 3, backend=backend)
    assert [each["place"] for each in (first, second, third)] == [(0, 2), (1, 2), (0, 1)]
    for each in (first, second):
        assert (each["sum"], each["mean"], each["gathered"], each["from the last"]) == (1.0, [0.5] * 3, [0.0, 1.0], 1.0)
    assert (third["sum"], third["mean"], third["gathered"], third["from the last"]) == (2.0, [2.0] * 3, [2.0], 2.0)
    assert all(each["of all"] == 3.0 for each in (first, second, third))
    assert all(each["counted"] == 4020 and each["waited"] > 0 for each in (first, second, third))
