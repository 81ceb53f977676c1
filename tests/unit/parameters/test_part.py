"""A push counts once, whoever sends it, and what was merged comes back with a checkpoint."""

from functools import partial

import pytest
import torch

from sparkdl.parameters import RULES, Memory, Outer, Part, Partition, Push

VALUES = {"weight": torch.zeros(4)}
PARTITION = Partition(VALUES, {}, servers=1)


def new_part(rule: str = "sgd") -> Part:
    memory = PARTITION.new_memory(0)
    PARTITION.cut(VALUES, 0, memory)
    return Part(PARTITION, 0, memory, RULES[rule])


def ones() -> Memory:
    memory = PARTITION.new_memory(0)
    PARTITION.cut({"weight": torch.ones(4)}, 0, memory)
    return memory


def push(portion: int, sequence: int, *, round: int = 0, version: int = 0) -> Push:
    return Push(round, portion, sequence, version, rate=1.0, sums=(2.0, 5.0))


def values(part: Part) -> list[float]:
    return part.pull()[1].view(torch.float32).tolist()


def test_a_repeated_push_changes_nothing() -> None:
    part = new_part()
    assert part.push(push(0, 0), ones())
    assert not part.push(push(0, 0), ones())
    assert values(part) == [-1.0] * 4
    assert part.tally()["sums"] == [2.0, 5.0]


def test_two_workers_that_do_one_portion_count_as_one() -> None:
    part = new_part()
    slow, fast = [push(7, 0), push(7, 1), push(7, 2)], [push(7, 0), push(7, 1), push(7, 2)]
    counted = [part.push(each, ones()) for each in (slow[0], fast[0], fast[1], slow[1], fast[2], slow[2])]
    assert counted == [True, False, True, False, True, False]
    assert part.tally()["applied"] == [(7, 3)]


def test_pushes_of_an_epoch_that_is_over_come_too_late() -> None:
    part = new_part()
    assert part.push(push(0, 0), ones())
    assert part.push(push(0, 0, round=1), ones())
    assert not part.push(push(1, 0), ones())
    assert part.tally()["sums"] == [2.0, 5.0]


def test_staleness_is_how_many_pushes_came_between_fetching_and_pushing() -> None:
    part = new_part("dynsgd")
    for portion, version in enumerate([0, 1, 0]):
        part.push(push(portion, 0, version=version), ones())
    assert part.tally()["staleness"] == [(0, 2), (2, 1)]
    assert values(part) == pytest.approx([-1 - 1 - 1 / 3] * 4)


def test_what_comes_back_from_a_checkpoint_goes_on_as_it_would_have() -> None:
    part, twin = new_part("adagrad"), new_part("adagrad")
    part.push(push(0, 0), ones())
    twin.load(part.state())
    for each in (part, twin):
        assert not each.push(push(0, 0), ones())
        each.push(push(0, 1, version=1), ones())
    assert values(part) == values(twin)
    assert part.tally() == twin.tally()


def test_a_fragment_is_pushed_and_pulled_alone_and_what_waits_is_in_a_pull_of_everything() -> None:
    tensors = {"first": torch.zeros(2), "second": torch.zeros(3)}
    partition = Partition(tensors, {}, servers=1, fragments=2)
    memory = partition.new_memory(0)
    partition.cut(tensors, 0, memory)
    part = Part(partition, 0, memory, partial(Outer, rate=1.0, momentum=0.0, quorum=2, grace=0.0))

    def send(portion: int, change: float) -> None:
        pushed = part.new_memory(1)
        partition.cut({"second": torch.full((3,), change)}, 0, pushed)
        assert part.push(push(portion, 0)._replace(fragment=1), pushed)

    def second() -> list[float]:
        return part.pull(1)[1].view(torch.float32).tolist()

    send(0, 1.0)
    assert second() == [0, 0, 0]
    send(1, 3.0)
    assert second() == [-2, -2, -2]
    assert part.pull(0)[1].view(torch.float32).tolist() == [0, 0]
    send(2, 5.0)
    assert values(part) == [0, 0, -7, -7, -7]
