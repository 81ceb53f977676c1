"""One Spark with the packages of Delta Lake and Iceberg, from Maven Central."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sparkdl

JARS = "io.delta:delta-spark_2.12:3.3.2", "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.6.1"
EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="session")
def spark(folder: Path) -> Iterator[SparkSession]:
    catalog = "spark.sql.catalog"
    options = {
        "spark.jars.packages": ",".join(JARS),
        "spark.sql.extensions": ",".join(EXTENSIONS),
        f"{catalog}.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        f"{catalog}.lake": "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.lake.type": "hadoop",
        f"{catalog}.lake.warehouse": str(folder / "warehouse"),
        "spark.sql.warehouse.dir": str(folder / "delta-warehouse"),
    }
    session = sparkdl.get_session(sparkdl.Cluster(options=options))
    yield session
    session.stop()
