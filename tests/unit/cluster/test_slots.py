"""Where a barrier stage cannot run, somebody says so before anything waits."""

from types import SimpleNamespace

import pytest

from sparkdl.cluster import run_ranks, wait_for_slots
from sparkdl.errors import ConfigError


def test_dynamic_allocation_is_refused_with_what_to_do() -> None:
    session = SimpleNamespace(conf={"spark.master": "spark://host:7077", "spark.dynamicAllocation.enabled": "true"})
    with pytest.raises(ConfigError, match=r"barrier.*SPARK-24942.*spark\.dynamicAllocation\.enabled=false"):
        wait_for_slots(session, 2, timeout=60)


@pytest.mark.parametrize("setting", ["spark.driver.host", "spark.driver.bindAddress"])
def test_an_address_of_ipv6_is_refused_with_the_setting_to_change(setting: str) -> None:
    conf = {"spark.master": "spark://host:7077", "spark.driver.host": "127.0.0.1", setting: "[::1]"}
    with pytest.raises(ConfigError, match=rf"{setting} is \[::1\].*IPv4"):
        run_ranks(lambda rank: None, 2, spark=SimpleNamespace(conf=conf))
