"""Python workers of the embedded Spark are forked from a process that has imported what they need."""

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator

import psutil
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sparkdl.cluster import Rank, run_ranks
from sparkdl.collectives import create_backend
from sparkdl.errors import RankError


def look(rank: Rank) -> tuple[int, bool, bool, bool]:
    started = time.process_time()  # of this process alone, its fork included
    import torch

    with create_backend("auto").connect():  # and the optimizer imports more
        torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    loaded = time.process_time() - started < 0.5
    return os.getpid(), "mlflow" in sys.modules, loaded, gc.get_freeze_count() > 0


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_worker_in_place_of_one_that_died_has_pytorch_already_and_its_collector_leaves_that_alone(
    spark: SparkSession,
) -> None:
    process, *_ = run_ranks(look, 2, spark=spark)[0]
    first = psutil.Process(process).parent().children()  # tests before this one may have left more of them than two
    while any(map(is_alive, first)):
        with pytest.raises(RankError):
            run_ranks(lambda rank: os._exit(1), 2, spark=spark)
    found = run_ranks(look, 2, spark=spark)
    assert [each[1:] for each in found] == [(False, True, True)] * 2


PROGRAM = """
import os, time
import psutil, pyarrow as pa
from sparkdl.cluster import get_session

def many(batches):
    for _ in batches:
        for _ in range(500):
            yield pa.RecordBatch.from_pylist([{"process": os.getpid(), "text": "x" * 10_000}])

spark = get_session()
worker = spark.range(1, numPartitions=1).mapInArrow(many, "process long, text string").first().process
deadline = time.monotonic() + 30
while psutil.pid_exists(worker) and time.monotonic() < deadline:
    time.sleep(0.1)
"""


def test_a_worker_that_is_asked_for_no_more_rows_ends_without_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


def test_no_zip_of_spark_is_looked_through_before_each_task(spark: SparkSession) -> None:
    def zips(_: Iterable[int]) -> list[str]:
        return [entry for entry in sys.path_importer_cache if entry.endswith(".zip") and "pyspark" in entry]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(zips).collect() == []


def test_functions_that_sql_calls_are_forked_from_the_same_process(spark: SparkSession) -> None:
    def parent(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"process": os.getppid()}])

    of_sql = {row.process for row in spark.range(2).mapInArrow(parent, "process long").collect()}
    assert of_sql == set(spark.sparkContext.parallelize(range(2), 2).map(lambda _: os.getppid()).collect())
