import resource

import pytest
import torch

from sparkdl.cluster.devices import (
    cuda_index,
    device_of_process,
    limited_threads,
    retained_memory,
    threads_of_process,
)
from sparkdl.errors import ConfigError


@pytest.mark.parametrize(
    ("address", "visible", "index"),
    [
        ("0", None, 0),
        ("3", None, 3),
        ("3", "", 3),
        ("3", "2,3", 1),  # the environment renumbers the GPUs that Spark names by their machine-wide number
        ("1", "2,3", 1),  # the discovery script ran inside a container that renumbered them already
        ("GPU-b", "GPU-a, GPU-b", 1),
    ],
)
def test_the_gpu_that_spark_assigned_becomes_cudas_number(address: str, visible: str | None, index: int) -> None:
    assert cuda_index(address, visible) == index


@pytest.mark.parametrize(("address", "visible"), [("5", "0,1"), ("GPU-c", "GPU-a"), ("GPU-c", None)])
def test_a_gpu_that_the_process_cannot_see_is_named(address: str, visible: str | None) -> None:
    with pytest.raises(ConfigError, match=address):
        cuda_index(address, visible)


def test_local_processes_take_one_visible_gpu_each_and_then_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert [device_of_process(local_rank) for local_rank in range(3)] == ["cuda:0", "cuda:1", "cpu"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device_of_process(0) == "cpu"


def test_a_process_has_at_least_one_thread() -> None:
    assert threads_of_process(10_000) == 1


def test_threads_are_set_for_the_block_only() -> None:
    import torch

    before = torch.get_num_threads()
    with limited_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_memory_that_a_step_frees_is_kept_for_the_next_step_and_returned_in_the_end() -> None:
    def page_faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            torch.zeros(4 << 20)  # 16 MiB, 4,096 pages
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    with retained_memory():
        page_faults()
        assert page_faults() < 4_096
    assert page_faults() > 4_000
