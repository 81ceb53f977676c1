"""One Spark with packages from Maven Central: Delta Lake, Iceberg, and Hadoop's client of S3 with its committers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sparkdl

from ..s3_server import S3Server

JARS = (
    "io.delta:delta-spark_2.12:3.3.2",
    "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.6.1",
    "org.apache.spark:spark-hadoop-cloud_2.12:3.5.8",
)
CLOUD = "org.apache.spark.internal.io.cloud"
COMMITTER = {
    "spark.hadoop.fs.s3a.committer.name": "magic",
    "spark.sql.sources.commitProtocolClass": f"{CLOUD}.PathOutputCommitProtocol",
    "spark.sql.parquet.output.committer.class": f"{CLOUD}.BindingParquetOutputCommitter",
}
"""With which no file is renamed: S3 would copy it."""
EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="session")
def spark(folder: Path, s3_process: S3Server) -> Iterator[SparkSession]:
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
    variables = {"AWS_ENDPOINT_URL": s3_process.url, "AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():  # what Spark's tasks find is what the session was started with
            patch.setenv(name, value)
        session = sparkdl.get_session(sparkdl.Cluster(options=options | COMMITTER))
    yield session
    session.stop()
