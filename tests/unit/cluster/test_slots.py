"""Where a barrier stage cannot run, somebody says so before anything waits."""

from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from sparkdl.cluster import run_ranks, wait_for_slots
from sparkdl.errors import ClusterError, ConfigError
from sparkdl.settings import Resources


def session_with(conf: dict[str, str], version: str = "4.3.0") -> SparkSession:
    """What is asked of a classic session before anything starts."""
    found = SimpleNamespace(sparkContext=SimpleNamespace(_conf=conf), _jsc=None, version=version)
    return cast(SparkSession, found)


def test_dynamic_allocation_is_refused_with_what_to_do() -> None:
    session = session_with({"spark.master": "spark://host:7077", "spark.dynamicAllocation.enabled": "true"})
    with pytest.raises(ConfigError, match=r"barrier.*SPARK-24942.*spark\.dynamicAllocation\.enabled=false"):
        wait_for_slots(session, 2, timeout=60)


@pytest.mark.parametrize("setting", ["spark.driver.host", "spark.driver.bindAddress"])
def test_an_address_of_ipv6_is_refused_with_the_setting_to_change(setting: str) -> None:
    conf = {"spark.master": "spark://host:7077", "spark.driver.host": "127.0.0.1", setting: "[::1]"}
    with pytest.raises(ConfigError, match=rf"{setting} is \[::1\].*IPv4"):
        run_ranks(lambda rank: None, 2, spark=session_with(conf))


@pytest.mark.parametrize(
    ("resources", "conf", "version", "error", "words"),
    [
        (Resources(cpus=2), {"spark.master": "local[2]"}, "4.3.0", ConfigError, "cluster.resources is for clusters"),
        (Resources(cpus=2), {}, "3.5.9", ConfigError, "cluster.resources needs Spark 4"),
        (Resources(cpus=4), {"spark.executor.cores": "2"}, "4.3.0", ClusterError, "4 cores per task.*cores=2"),
        (Resources(gpus=1), {}, "4.3.0", ClusterError, "1 GPU per task.*gpu.amount=0"),
    ],
)
def test_resources_that_nobody_will_ever_have_are_named_at_once(
    resources: Resources, conf: dict[str, str], version: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        wait_for_slots(session_with(conf, version), 2, timeout=60, resources=resources)
