"""The client's side of Spark Connect: getting a session, or an error within seconds, and the client's address.

Runs on the driver, which in Spark Connect is the client.
"""

import logging
import os
import queue
import re
import secrets
import socket
from functools import lru_cache, partial

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sparkdl.cluster.channel import Channel
from sparkdl.cluster.independent_tasks import IndependentTasks
from sparkdl.cluster.rendezvous import own_address
from sparkdl.cluster.sender import Sender
from sparkdl.errors import ClusterError, ConfigError
from sparkdl.extras import require
from sparkdl.sessions import application_setting, hurried

__all__ = ["REMOTE", "check_server", "client_addresses", "connected", "reaches_client"]

REMOTE = "SPARK_REMOTE"
"""Spark's own environment variable: the address of a server, such as ``sc://host:15002``."""
KNOCK_SECONDS = 3.0  # a client that does not answer within this time counts as unreachable

logger = logging.getLogger("sparkdl")


def connected() -> SparkSession:
    """A session of the server that ``SPARK_REMOTE`` names. Raises the errors of :func:`check_server`."""
    require("grpc", extra="connect")
    spark = SparkSession.builder.getOrCreate()
    try:
        check_server(spark)
    except ClusterError:
        spark.client.close()  # type: ignore[attr-defined]  # or the process, when it ends, asks again for ten minutes
        raise
    return spark


def check_server(spark: SparkSession) -> None:
    """Raise :class:`~sparkdl.errors.ClusterError` at once unless the server answers and accepts the session."""
    try:
        with hurried(spark):
            spark.version  # noqa: B018 - to be asked for; a session remembers the answer
    except PySparkException as error:
        host = spark.client.host  # type: ignore[attr-defined]
        raise ClusterError(
            f"cannot use the Spark Connect server on {host}: {_message(error)}. Check the address and the token in"
            f" {REMOTE}. With a token, Spark uses TLS, except for a server at sc://localhost"
        ) from None


def client_addresses(spark: SparkSession) -> tuple[str, str]:
    """The address to listen on, and the one that ranks connect to: this machine's address in the server's network.

    ``SPARK_LOCAL_IP`` overrides it. Raises :class:`~sparkdl.errors.ConfigError` if this machine cannot listen there.
    """
    if named := os.environ.get("SPARK_LOCAL_IP"):
        return named, named
    address = own_address(spark.client.host)  # type: ignore[attr-defined]
    if not address.startswith("127."):
        return address, address
    # The server is on this machine: executors reach the client at the server's address.
    host = application_setting(spark, "spark.driver.host", address)
    bind_address = application_setting(spark, "spark.driver.bindAddress", host)
    try:
        socket.create_server((bind_address, 0)).close()
    except OSError:
        raise ConfigError(
            f"the Spark Connect server seems to be on this machine, but its address {host} is not this machine's; set"
            " SPARK_LOCAL_IP to the address at which executors reach this machine"
        ) from None
    return bind_address, host


@lru_cache(maxsize=4)
def reaches_client(spark: SparkSession) -> bool:
    """Whether executors reach this client. A Spark task tries it, once per session.

    In the executors' network, another machine may have the client's address, so the client must prove that it knows a
    secret.
    """
    try:
        bind_address, host = client_addresses(spark)
    except ConfigError:  # the server is reached through a tunnel
        return False
    secret = secrets.token_bytes(32)
    channel = Channel(bind_address, size=1, secret=secret, events=queue.SimpleQueue())
    with channel, IndependentTasks(spark) as tasks:
        knocking = partial(_knock, (host, channel.port), secret)
        (said,) = tasks.submit(knocking, description="sparkdl: is the client reached?").result()
    if said:
        logger.warning(
            "executors cannot reach this client at %s; Spark tasks, which take one slot, will fetch ranks' messages."
            " To avoid it, set SPARK_LOCAL_IP to another address of the client",
            host,
        )
    return not said


def _knock(address: tuple[str, int], secret: bytes) -> list[str]:
    """The reason why a client cannot be reached; empty if it can. Runs in a task."""
    try:
        Sender(address, secret=secret, patience=KNOCK_SECONDS, rank=0).close()
    except ConnectionError as error:
        return [str(error)]
    return [""]


def _message(error: PySparkException) -> str:
    """The message of gRPC, from the middle of a long text, or the first line of Spark's own."""
    details = re.search(r'details = "(.*)"', str(error))
    return details[1] if details else str(error).partition("\n")[0]
