"""Where ranks find the client of a Spark Connect server."""

from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from sparkdl.cluster import connect
from sparkdl.cluster.connect import client_addresses
from sparkdl.errors import ConfigError

ELSEWHERE = "203.0.113.1"  # RFC 5737: nobody's


def session(server: str, driver: str = "127.0.0.1") -> SparkSession:
    conf = {"spark.driver.host": driver, "spark.driver.bindAddress": driver}
    return cast(SparkSession, SimpleNamespace(client=SimpleNamespace(host=server), conf=conf))


def test_a_client_on_the_servers_machine_is_where_the_server_is() -> None:
    assert client_addresses(session("localhost", driver="127.0.0.2")) == ("127.0.0.2", "127.0.0.2")


def test_a_client_elsewhere_is_at_its_own_address_and_not_at_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "own_address", {ELSEWHERE: "198.51.100.7"}.__getitem__)  # whatever networks are here
    assert client_addresses(session(ELSEWHERE, driver=ELSEWHERE)) == ("198.51.100.7", "198.51.100.7")


def test_the_address_that_somebody_names_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.3")
    assert client_addresses(session(ELSEWHERE)) == ("127.0.0.3", "127.0.0.3")


def test_a_server_behind_a_tunnel_is_told_from_one_on_this_machine() -> None:
    with pytest.raises(ConfigError, match=rf"its address {ELSEWHERE} is not this machine's; set SPARK_LOCAL_IP"):
        client_addresses(session("localhost", driver=ELSEWHERE))
