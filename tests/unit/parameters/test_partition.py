"""Every element of every tensor lies on exactly one server, and comes back as it was."""

import pytest
import torch

from sparkdl.parameters import Partition

TRAINED = {
    "weight": torch.arange(35.0).view(5, 7),
    "bias": torch.arange(3.0),
    "scale": torch.tensor([0.1, 0.2], dtype=torch.float64),
    "half": torch.arange(5, dtype=torch.float16),
    "empty": torch.empty(0),
}
BUFFERS = {"mean": torch.arange(9.0), "batches": torch.tensor(4)}
ALL = TRAINED | BUFFERS


@pytest.mark.parametrize("servers", [1, 2, 3, 50])
def test_tensors_of_any_shape_and_type_come_back(servers: int) -> None:
    partition = Partition(TRAINED, BUFFERS, servers=servers)
    memories = [partition.new_memory(server) for server in range(servers)]
    for server, memory in enumerate(memories):
        partition.cut(ALL, server, memory)
    back = {name: torch.full_like(tensor, 77) for name, tensor in ALL.items()}
    partition.join(memories, back)
    assert all(torch.equal(back[name], ALL[name]) for name in ALL)


def test_servers_hold_equal_parts_of_each_tensor_give_or_take_one_element() -> None:
    partition = Partition(TRAINED, BUFFERS, servers=3)
    lengths = [
        {name: len(part) for name, part in partition.slices(server, partition.new_memory(server)).items()}
        for server in range(3)
    ]
    for name, tensor in ALL.items():
        found = [each[name] for each in lengths]
        assert sum(found) == tensor.numel()
        assert max(found) - min(found) <= 1


def test_trained_values_and_buffers_of_one_type_are_merged_apart() -> None:
    partition = Partition(TRAINED, BUFFERS, servers=1)
    blocks = {(str(block.dtype), block.trained): block.names for block in partition.blocks}
    assert blocks["torch.float32", True] == ("weight", "bias", "empty")
    assert blocks["torch.float32", False] == ("mean",)


def test_fragments_hold_each_trained_tensor_once_and_travel_by_themselves() -> None:
    partition = Partition(TRAINED, BUFFERS, servers=2, fragments=2)
    memories = [[partition.new_memory(server, fragment) for server in range(2)] for fragment in range(2)]
    names = [set(partition.slices(0, memory)) for memory, _ in memories]
    assert names == [{"weight", "scale", "empty", *BUFFERS}, {"bias", "half"}]
    back = {name: torch.full_like(tensor, 77) for name, tensor in ALL.items()}
    for of_servers in memories:
        for server, memory in enumerate(of_servers):
            partition.cut(ALL, server, memory)
        partition.join(of_servers, back)
    assert all(torch.equal(back[name], ALL[name]) for name in ALL)
    assert Partition(TRAINED, {}, servers=1, fragments=9).fragments == len(TRAINED)


def test_what_is_not_given_is_zero() -> None:
    partition = Partition(TRAINED, BUFFERS, servers=1)
    memory = partition.new_memory(0)
    partition.cut({"bias": TRAINED["bias"]}, 0, memory)
    slices = partition.slices(0, memory)
    assert slices["bias"].tolist() == [0, 1, 2]
    assert not slices["weight"].any()
