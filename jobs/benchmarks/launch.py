"""Warm launch of two ranks that all-reduce one number, on a cluster of two executor processes.

The rivals are ``horovod.spark.run`` and ``pyspark.ml.torch.distributor.TorchDistributor`` on the same cluster, in the
same run. Every system's first launch is not counted.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import click
import pyspark
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

import sparkdl
from benchmarks.report import Report, Target
from sparkdl.cluster import Rank, run_ranks
from sparkdl.collectives import Backend, HorovodBackend, TorchBackend

__all__ = ["LAUNCHES", "launch_by_sparkdl", "measure", "run"]

NUM_RANKS = 2
MASTER = "local-cluster[2,1,1024]"  # two executors, one core and 1,024 MiB each
LAUNCHES = 9
RIVAL_LAUNCHES = 3  # of 10 to 16 s each


def run() -> Report:
    """Start the cluster, launch with each system, stop the cluster. Runs on the driver; no Spark may be running yet."""
    with _cluster() as spark:
        ours, over_torch = (
            measure(partial(launch_by_sparkdl, spark, backend), LAUNCHES)
            for backend in (HorovodBackend(), TorchBackend())
        )
        runner = measure(_launch_by_runner, LAUNCHES)
        horovod = measure(_launch_by_horovod, RIVAL_LAUNCHES)
        distributor = measure(_launch_by_distributor, RIVAL_LAUNCHES)
    found = {
        "sparkdl": ours,
        "sparkdl, backend torch": over_torch,
        "TorchRunner": runner,
        "horovod.spark.run": horovod,
        "TorchDistributor": distributor,
    }
    return Report(
        title="launch: two warm ranks that all-reduce once, two executor processes",
        columns=["system", "median s", "fastest s", "slowest s", "launches", "times slower"],
        rows=[
            [name, median(times), min(times), max(times), str(len(times)), median(times) / median(ours)]
            for name, times in found.items()
        ],
        targets=[
            Target("seconds", median(ours), 1.5, at_most=True),
            Target("times faster than horovod.spark.run", median(horovod) / median(ours), 8),
            Target("times faster than TorchDistributor", median(distributor) / median(ours), 8),
            Target("seconds, backend torch", median(over_torch), 0.6, at_most=True),
            Target("times faster than TorchDistributor, backend torch", median(distributor) / median(over_torch), 12),
            Target("seconds, TorchRunner", median(runner), 0.6, at_most=True),
            Target("times faster than TorchDistributor, TorchRunner", median(distributor) / median(runner), 12),
        ],
        note=f"{MASTER}; the first launch of each system is not counted.",
    )


def measure(launch: Callable[[], list[float]], repeats: int) -> list[float]:
    """Seconds of each launch after the first."""
    seconds = []
    for _ in range(1 + repeats):
        started = time.perf_counter()
        totals = launch()
        seconds.append(time.perf_counter() - started)
        if set(totals) != {3.0}:
            raise RuntimeError(f"the ranks computed {totals}, not 3.0")
    return seconds[1:]


def launch_by_sparkdl(spark: SparkSession, backend: Backend) -> list[float]:
    """What each rank has after it has all-reduced its number, counted from 1."""

    def reduce(rank: Rank) -> float:
        import torch

        with backend.connect() as communicator:
            return communicator.all_reduce(torch.tensor([rank.rank + 1.0]), op="sum").item()

    return run_ranks(reduce, NUM_RANKS, spark=spark, backend=backend)


def _launch_by_horovod() -> list[float]:
    import horovod.spark

    def reduce() -> float:
        import horovod.torch as hvd
        import torch

        hvd.init()
        return float(hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), op=hvd.Sum))

    return list(horovod.spark.run(reduce, num_proc=NUM_RANKS, use_gloo=True, verbose=0))


def _program() -> Callable[[], float]:
    def reduce() -> float:
        import torch
        from torch import distributed

        distributed.init_process_group("gloo")
        total = torch.tensor([distributed.get_rank() + 1.0])
        distributed.all_reduce(total)
        distributed.destroy_process_group()
        return float(total)

    return reduce  # not by the name of this module, which ranks would have to import


def _launch_by_runner() -> list[float]:
    return [sparkdl.TorchRunner(np=NUM_RANKS).run(_program())]


def _launch_by_distributor() -> list[float]:
    distributor = TorchDistributor(num_processes=NUM_RANKS, local_mode=False, use_gpu=False)
    return [float(distributor.run(_program()) or 0.0)]


@contextmanager
def _cluster() -> Iterator[SparkSession]:
    """Spark with executors as processes of their own."""
    if SparkSession.getActiveSession():
        raise click.ClickException("launch starts a cluster of its own; stop the running Spark session first")
    spark = sparkdl.get_session(sparkdl.Cluster(options={"spark.master": MASTER, "spark.executor.memory": "1g"}))
    # The executors of local-cluster always keep their logs in the folder of the installed Spark.
    logs = Path(pyspark.__file__).parent / "work" / spark.sparkContext.applicationId
    try:
        yield spark
    finally:
        spark.stop()
        shutil.rmtree(logs, ignore_errors=True)
