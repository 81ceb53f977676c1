"""Collectives on real ranks: two processes on this machine in one launch for most promises, four in another."""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import HorovodCollectives


def means_in_any_order(collectives: HorovodCollectives) -> bool:
    """Whether 100 rounds of messages are right that each rank begins in an order and a rhythm of its own."""
    order = random.Random(collectives.rank)
    right = True
    for number in range(100):
        tensors = [torch.full((4**index,), float(collectives.rank + number)) for index in range(7)]
        waits = []
        for index in order.sample(range(7), 7):
            waits.append(collectives.start_mean([tensors[index]], name=f"message.{index}"))
            time.sleep(order.random() / 500)
        for wait in waits:
            wait()
        right = right and all(bool((tensor == number + 0.5).all()) for tensor in tensors)
    return right


def mean_of_many(collectives: HorovodCollectives) -> bool:
    """Whether tensors are right of which the ranks need several kilobytes to agree."""
    tensors = [torch.full((3,), float(collectives.rank + number)) for number in range(100)]
    collectives.start_mean(tensors, name="a message with a name of some length")()
    return all(bool((tensor == number + 0.5).all()) for number, tensor in enumerate(tensors))


def late_answers(collectives: HorovodCollectives) -> int:
    """How many of 20 messages take long that the ranks begin, one just before the other, 0.1 s after the last one."""
    rhythm, late = random.Random(collectives.rank), 0
    for _ in range(20):
        time.sleep(0.1 + rhythm.uniform(-0.003, 0.003))
        started = time.perf_counter()
        collectives.start_mean([torch.ones(10)], name="in time")()
        late += time.perf_counter() - started > 0.08
    return late


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


def of_many_types(collectives: HorovodCollectives) -> list[bool]:
    """Whether each tensor of another rank has arrived."""
    network, expected = OfManyTypes(collectives.rank), OfManyTypes(1)
    collectives.broadcast_parameters(network, root=1)
    pairs = zip([network.weight, *network.buffers()], [expected.weight, *expected.buffers()], strict=True)
    alone = [collectives.broadcast(torch.full((2,), collectives.rank).to(dtype), root=1) for dtype in TYPES]
    equal = [bool(torch.equal(ours, theirs)) for ours, theirs in pairs]
    return [*equal, *(bool(torch.equal(found, torch.ones(2).to(found.dtype))) for found in alone)]


def exercise(rank: Rank) -> dict:
    found: dict = {}
    with HorovodCollectives() as collectives:
        number = rank.rank + 1.0
        precise = torch.tensor([number, 1e-17 * number], dtype=torch.float64)
        found["rank and size"] = (collectives.rank, collectives.size)
        found["sum"] = collectives.allreduce(precise, op="sum").tolist()
        found["mean"] = collectives.allreduce(torch.tensor([number]), op="mean").tolist()
        found["unchanged"] = precise.tolist() == [number, 1e-17 * number]
        found["broadcast"] = collectives.broadcast(torch.tensor([number]), root=1).tolist()
        found["broadcast object"] = collectives.broadcast_object({"rank": rank.rank}, root=1)
        found["gathered"] = collectives.allgather_object("x" * (rank.rank + 1))
        numbered = torch.full((2, 2), rank.rank, dtype=torch.bfloat16).t()
        found["tensors gathered"] = collectives.allgather(numbered).tolist()
        another_type = "text" if rank.rank else None
        found["another type"] = collectives.broadcast_object(another_type, root=1)
        found["types gathered"] = collectives.allgather_object(another_type)
        collectives.barrier()
        found["in any order"] = means_in_any_order(collectives)
        found["of many"] = mean_of_many(collectives)
        found["late"] = late_answers(collectives)
        found["of many types"] = of_many_types(collectives)
        found["half"] = collectives.allreduce(torch.tensor([1.0 + rank.rank], dtype=torch.bfloat16)).float().tolist()
        large = torch.full((3,), 40_000.0, dtype=torch.float16)  # the sum of two is infinite
        found["large half"] = collectives.allreduce(large).tolist()
        collectives.start_mean([large], name="large half")()
        found["large half in place"] = large.tolist()
        found["addresses"] = {each.laddr.ip for each in psutil.Process().net_connections("tcp")}

        torch.manual_seed(rank.rank)
        network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        network[1].running_mean.fill_(number)  # type: ignore[operator, union-attr]
        collectives.broadcast_parameters(network)
        found["parameters"] = [value.sum().item() for value in network.state_dict().values()]
    return found


@pytest.fixture(scope="module")
def found() -> list[dict]:
    return run_local(exercise, 2)


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


def test_messages_may_be_begun_in_any_order_on_each_rank(found) -> None:
    assert all(each["in any order"] for each in found)


def test_a_message_may_have_many_tensors(found) -> None:
    assert all(each["of many"] for each in found)


def test_a_rank_that_has_slept_answers_at_once(found) -> None:
    assert all(each["late"] < 5 for each in found)


def test_what_a_rank_sends_runs_nothing_on_the_others(tmp_path: Path) -> None:
    class Touch:
        def __reduce__(self) -> tuple:
            return (Path.touch, (tmp_path / f"executed by {os.getpid()}",))

    def exchange(rank: Rank) -> list[str]:
        with HorovodCollectives() as collectives:
            value = Touch() if rank.rank == 0 else None
            return [_refusal(collectives.broadcast_object, value), _refusal(collectives.allgather_object, value)]

    for refusals in run_local(exchange, 2):
        assert all("rank 0 sent something else than tensors and plain values" in text for text in refusals)
    assert not list(tmp_path.iterdir())


def _refusal(exchange: Callable[[object], object], value: object) -> str:
    try:
        return f"accepted: {exchange(value)}"
    except TypeError as error:
        return str(error)
