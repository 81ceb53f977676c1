import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from sparkdl.cluster.devices import (
    cuda_index,
    device_of_process,
    limited_threads,
    own_cores,
    retained_memory,
    roam,
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
        ("1", "2,3", 1),  # the discovery script ran where they were renumbered already, or counts places
        ("0", "2", 0),
        ("1", "GPU-a,GPU-b", 1),
        ("GPU-b", "GPU-a, GPU-b", 1),
    ],
)
def test_the_gpu_that_spark_assigned_becomes_cudas_number(address: str, visible: str | None, index: int) -> None:
    assert cuda_index(address, visible) == index


@pytest.mark.parametrize(
    ("address", "visible"),
    [
        ("5", "0,1"),
        ("0", "1,2"),  # by its place it would be the GPU of the rank that was given "1"
        ("0", "-1"),
        ("GPU-c", "GPU-a"),
        ("GPU-c", None),
    ],
)
def test_a_gpu_that_the_process_cannot_see_is_named(address: str, visible: str | None) -> None:
    with pytest.raises(ConfigError, match=address):
        cuda_index(address, visible)


def test_local_processes_take_one_visible_gpu_each_and_then_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    assert [device_of_process(local_rank) for local_rank in range(3)] == ["cuda:0", "cuda:1", "cpu"]


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles", "-1,0"])
def test_without_a_visible_gpu_local_processes_take_the_cpu(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device_of_process(0) == "cpu"


def test_a_process_has_at_least_one_thread() -> None:
    assert threads_of_process(10_000) == 1


def test_threads_are_set_for_the_block_only() -> None:
    import torch

    before = torch.get_num_threads()
    with limited_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_ranks_that_have_all_cores_of_a_host_keep_to_their_own_with_all_their_threads() -> None:
    def seen_by_a_thread() -> set[int]:
        asked.wait()
        return os.sched_getaffinity(0)

    cores = os.sched_getaffinity(0)
    asked = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        earlier = pool.submit(seen_by_a_thread)
        found = []
        for local_rank in range(len(cores)):
            with own_cores("cpu", local_rank, len(cores), 1):
                found.append(os.sched_getaffinity(0))
                if local_rank == 0:
                    asked.set()
                    assert earlier.result() == found[0]
        assert pool.submit(os.sched_getaffinity, 0).result() == cores
    assert sorted(map(list, found)) == [[core] for core in sorted(cores)]
    assert os.sched_getaffinity(0) == cores


def test_a_thread_in_the_background_may_take_any_ranks_core() -> None:
    cores = os.sched_getaffinity(0)
    with own_cores("cpu", 0, len(cores), 1), ThreadPoolExecutor(1, initializer=roam) as pool:
        assert pool.submit(os.sched_getaffinity, 0).result() == cores
        assert len(os.sched_getaffinity(0)) == 1
    roam()  # changes nothing where nothing is bound
    assert os.sched_getaffinity(0) == cores


@pytest.mark.parametrize(
    ("device", "local_size", "threads_each"),
    [("cpu", 2, 1.0), ("cpu", 1, 1.0), ("cuda:0", 2, 0.5)],
    ids=["more threads than cores", "alone on its host", "with a GPU"],
)
def test_other_ranks_are_bound_to_no_cores(device: str, local_size: int, threads_each: float) -> None:
    cores = os.sched_getaffinity(0)
    with own_cores(device, 0, local_size, int(threads_each * len(cores))):
        assert os.sched_getaffinity(0) == cores


def test_ranks_are_bound_to_no_cores_where_that_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_OWN_CORES", "0")
    cores = os.sched_getaffinity(0)
    with own_cores("cpu", 0, len(cores), 1):
        assert os.sched_getaffinity(0) == cores


def page_faults(mebibytes: int) -> int:
    """Of 20 tensors of this size, one after another."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.zeros(mebibytes << 18)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_no_memory_is_kept_where_that_is_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARKDL_RETAINED_MEMORY", "0")
    with retained_memory():
        page_faults(64)
        assert page_faults(64) > 20 * 16_000  # up to 32 MiB glibc may come to keep by itself


def test_memory_that_a_step_frees_is_kept_for_the_next_step_and_returned_in_the_end() -> None:
    with retained_memory():
        page_faults(16)
        assert page_faults(16) < 4_096
    assert page_faults(16) > 4_000
