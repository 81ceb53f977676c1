"""`jobs/benchmark.py prepare`, `pictures` and `in_place` on Spark, as small as they can be."""

import cloudpickle
import pytest
from pyspark import cloudpickle as spark_cloudpickle
from pyspark.sql import SparkSession

import benchmarks
from benchmarks import in_place, pictures
from benchmarks.prepare import run


@pytest.fixture(scope="module", autouse=True)
def travelling() -> None:
    """Executors have no copy of the benchmarks."""
    for pickle in (cloudpickle, spark_cloudpickle):
        pickle.register_pickle_by_value(benchmarks)


def test_all_ways_are_timed_and_compared(spark: SparkSession) -> None:
    report = run(rows=300, wide_columns=5, rounds=1, warms_up=False)
    assert [row[0] for row in report.rows][:3] == [
        "sparkdl.prepare",
        "sparkdl.prepare, impute, standardise, two index",
        "sparkdl.prepare, a DataFrame",
    ]
    assert all(float(row[1]) > 0 for row in report.rows)
    assert [target.limit for target in report.targets] == [1.5, 2.5, 6.0]


def test_files_of_images_are_timed_beside_what_one_would_write(spark: SparkSession) -> None:
    report = pictures.run(pictures=60, rounds=1)
    assert [row[0] for row in report.rows][:2] == ["sparkdl.prepare", "mapInArrow by hand"]
    assert all(float(row[1]) > 0 for row in report.rows)


def test_rows_that_stay_in_place_are_read_beside_a_copy_of_them(spark: SparkSession) -> None:
    report = in_place.run(rows=300, rounds=1)
    assert [row[0] for row in report.rows] == ["stay in place", "copied"]
    assert all(float(figure) > 0 for row in report.rows for figure in (row[1], row[3]))
