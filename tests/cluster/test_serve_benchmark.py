"""`jobs/benchmark.py serve`, as small as it can be."""

from pyspark.sql import SparkSession

from benchmarks.serve import run


def test_servers_are_timed_beside_those_of_mlflow(spark: SparkSession) -> None:
    answers, load = run(starts=1, requests=3, rounds=1, seconds=0.3)
    assert answers.columns == ["measure", "sparkdl", "mlflow.pytorch", "bar"]
    assert all(float(figure) > 0 for row in answers.rows for figure in row[1:3])
    assert [row[1] for row in load.rows] == ["1", "8", "64"] * 2
    assert all(float(figure) > 0 for row in load.rows for figure in row[2:])
    assert [target.limit for report in (answers, load) for target in report.targets] == [5.0, 3.0, 25.0, 5.0]
