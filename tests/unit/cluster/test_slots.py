"""Where a barrier stage cannot run, somebody says so before anything waits."""

from types import SimpleNamespace

import pytest

from sparkdl.cluster import wait_for_slots
from sparkdl.errors import ConfigError


def test_dynamic_allocation_is_refused_with_what_to_do() -> None:
    session = SimpleNamespace(conf={"spark.master": "spark://host:7077", "spark.dynamicAllocation.enabled": "true"})
    with pytest.raises(ConfigError, match=r"barrier.*SPARK-24942.*spark\.dynamicAllocation\.enabled=false"):
        wait_for_slots(session, 2, timeout=60)
