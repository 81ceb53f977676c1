"""A task with several GPUs has a rank for each: on a cluster whose worker says that it has four."""

from pathlib import Path

import pytest

from benchmarks.standalone import standalone_cluster

from ..conftest import reported

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "gpus.py"
SETTINGS = {
    "spark.executor.cores": "4",
    "spark.task.cpus": "2",
    "spark.executor.resource.gpu.amount": "4",
    "spark.task.resource.gpu.amount": "2",
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("cluster")
    script = folder / "gpus.sh"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["0", "1", "2", "3"]}'\n""")
    script.chmod(0o755)
    options = [part for item in SETTINGS.items() for part in ("--conf", "=".join(item))]
    with pytest.MonkeyPatch.context() as patch:
        has_gpus = f"-Dspark.worker.resource.gpu.amount=4 -Dspark.worker.resource.gpu.discoveryScript={script}"
        patch.setenv("SPARK_WORKER_OPTS", has_gpus)
        with standalone_cluster(folder, cores=(4,), pythonpath=str(ROOT)) as cluster:
            return reported(cluster.command(PROGRAM, options=options), cluster.environment, timeout=300)


def test_each_gpu_of_a_task_has_a_rank_in_a_process_of_its_own(report: dict) -> None:
    assert report["slots"] == [2, 4]
    for places in (report["places"], report["again"]):
        ranks, local_ranks, local_sizes, devices, threads, processes, executors = zip(*places, strict=True)
        assert ranks == local_ranks == (0, 1, 2, 3)
        assert set(local_sizes) == {4} and set(threads) == {1}
        assert set(devices) == {"cuda:0", "cuda:1", "cuda:2", "cuda:3"}
        assert len(set(processes)) == 4
        assert executors == (["java"],) * 4
    assert [place[2] for place in report["one task"]] == [2, 2]


def test_a_program_of_torch_distributed_finds_the_ranks_of_all_tasks(report: dict) -> None:
    assert report["a program"] == [0b1111, "0", "4"]


def test_a_rank_that_fails_or_is_killed_is_named_and_nothing_of_the_run_is_left(report: dict) -> None:
    assert report["failing"].startswith("RankError") and "ValueError: no such row" in report["failing"]
    assert report["killed"].startswith("RankError") and "rank 3 of 4 failed" in report["killed"]
    assert report["left"] == [4, []]
    assert report["after"] == 4


def test_ranks_that_leave_a_gpu_of_a_task_alone_are_refused(report: dict) -> None:
    assert (
        "3 ranks were requested, but a task has 2 GPUs, with one rank for each: set num_ranks to a multiple of 2"
        in report["odd"]
    )
