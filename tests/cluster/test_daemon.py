"""Python workers of the embedded Spark are forked from a process that has imported what they need."""

import gc
import os
import sys
import time
from collections.abc import Iterable, Iterator

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


def test_the_worker_in_place_of_one_that_died_has_pytorch_already_and_its_collector_leaves_that_alone(
    spark: SparkSession,
) -> None:
    first = {process for process, *_ in run_ranks(look, 2, spark=spark)}
    with pytest.raises(RankError):
        run_ranks(lambda rank: os._exit(1), 2, spark=spark)
    found = run_ranks(look, 2, spark=spark)
    assert {process for process, *_ in found}.isdisjoint(first)
    assert [each[1:] for each in found] == [(False, True, True)] * 2


def test_functions_that_sql_calls_are_forked_from_the_same_process(spark: SparkSession) -> None:
    def parent(_: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"process": os.getppid()}])

    of_sql = {row.process for row in spark.range(2).mapInArrow(parent, "process long").collect()}
    assert of_sql == set(spark.sparkContext.parallelize(range(2), 2).map(lambda _: os.getppid()).collect())
