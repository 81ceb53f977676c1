"""`jobs/benchmark.py serve`, as small as it can be."""

from pyspark.sql import SparkSession

from benchmarks.serve import run


def test_a_server_is_timed_beside_one_of_mlflows_own_flavour(spark: SparkSession) -> None:
    report = run(starts=1, requests=3)
    assert report.columns == ["measure", "sparkdl", "mlflow.pytorch", "bar"]
    assert all(float(figure) > 0 for row in report.rows for figure in row[1:3])
    assert [target.limit for target in report.targets] == [5.0, 3.0]
