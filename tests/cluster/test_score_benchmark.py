"""`jobs/benchmark.py score`: its table of numbers, as small as it can be."""

import cloudpickle
import pytest
from pyspark import cloudpickle as spark_cloudpickle
from pyspark.sql import SparkSession

import benchmarks
from benchmarks import score_table


@pytest.fixture(scope="module", autouse=True)
def travelling() -> None:
    """Executors have no copy of the benchmarks."""
    for pickle in (cloudpickle, spark_cloudpickle):
        pickle.register_pickle_by_value(benchmarks)


def test_a_table_is_scored_beside_its_rivals(spark: SparkSession) -> None:
    report = score_table.run(rows=2_000, rounds=1)
    ours, by_hand, best = report.rows
    assert (ours[0], ours[-1], by_hand[0]) == ("sparkdl.score", 1.0, "mapInArrow by hand")
    assert str(best[0]).startswith("predict_batch_udf, ")
    assert all(float(figure) > 0 for row in report.rows for figure in row[1:])
    assert [target.limit for target in report.targets] == [1.5, 0.7, 150]
