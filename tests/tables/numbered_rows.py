"""Rows with a number, a feature and a label."""

from pyspark.sql import DataFrame, SparkSession


def rows(spark: SparkSession, begin: int, count: int) -> DataFrame:
    return spark.range(begin, begin + count).selectExpr("id", "sin(id) + id % 2 AS x", "CAST(id % 2 AS int) AS label")
