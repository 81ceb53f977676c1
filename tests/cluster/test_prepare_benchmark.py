"""`jobs/benchmark.py prepare` on Spark, as small as it can be."""

from pyspark.sql import SparkSession

from benchmarks.prepare import run


def test_all_ways_are_timed_and_compared(spark: SparkSession) -> None:
    report = run(rows=300, wide_columns=5, rounds=1)
    assert [row[0] for row in report.rows][:3] == [
        "sparkdl.prepare",
        "sparkdl.prepare, impute, standardise, two index",
        "Spark's copy",
    ]
    assert all(float(row[1]) > 0 for row in report.rows)
    assert [target.limit for target in report.targets] == [1.5, 2.5, 6.0]
