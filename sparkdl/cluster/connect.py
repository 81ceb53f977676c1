"""Spark Connect from the client's side: a session within seconds or the reason why not, and its address.

Runs on the driver, which here is the client.
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
KNOCK_SECONDS = 3.0  # after which a client that does not answer is taken for one that cannot be reached

logger = logging.getLogger("sparkdl")


def connected() -> SparkSession:
    """A session of the server that ``SPARK_REMOTE`` names; raises what :func:`check_server` raises."""
    require("grpc", extra="connect")
    spark = SparkSession.builder.getOrCreate()
    try:
        check_server(spark)
    except ClusterError:
        spark.client.close()  # type: ignore[attr-defined]  # or the process, when it ends, asks again for ten minutes
        raise
    return spark


def check_server(spark: SparkSession) -> None:
    """Raise :class:`~sparkdl.errors.ClusterError` at once unless the server answers and lets the session in."""
    try:
        with hurried(spark):
            spark.version  # noqa: B018 - to be asked for; a session remembers the answer
    except PySparkException as error:
        host = spark.client.host  # type: ignore[attr-defined]
        raise ClusterError(
            f"cannot use the Spark Connect server on {host}: {_told(error)}. Look at {REMOTE}: is the address right,"
            " and the token? With a token, Spark uses TLS, except for a server at sc://localhost"
        ) from None


def client_addresses(spark: SparkSession) -> tuple[str, str]:
    """The address to listen on, and the one to tell ranks: this machine's, as the server's network sees it.

    ``SPARK_LOCAL_IP`` overrides what is found. Raises :class:`~sparkdl.errors.ConfigError` where nobody could listen.
    """
    if named := os.environ.get("SPARK_LOCAL_IP"):
        return named, named
    address = own_address(spark.client.host)  # type: ignore[attr-defined]
    if not address.startswith("127."):
        return address, address
    # The server is on this machine: its ranks find the client where they find the server.
    host = application_setting(spark, "spark.driver.host", address)
    bind_address = application_setting(spark, "spark.driver.bindAddress", host)
    try:
        socket.create_server((bind_address, 0)).close()
    except OSError:
        raise ConfigError(
            f"the Spark Connect server seems to be on this machine, and is at {host}, which this machine is not; set"
            " SPARK_LOCAL_IP to the address by which executors reach this machine"
        ) from None
    return bind_address, host


@lru_cache(maxsize=4)
def reaches_client(spark: SparkSession) -> bool:
    """Whether executors reach this client. A task tries, once in a session.

    Another machine may have the client's address in the executors' network: only one that knows a secret counts.
    """
    try:
        bind_address, host = client_addresses(spark)
    except ConfigError:  # behind a tunnel
        return False
    secret = secrets.token_bytes(32)
    channel = Channel(bind_address, size=1, secret=secret, events=queue.SimpleQueue())
    with channel, IndependentTasks(spark) as tasks:
        knocking = partial(_knock, (host, channel.port), secret)
        (said,) = tasks.submit(knocking, description="sparkdl: is the client reached?").result()
    if said:
        logger.warning(
            "executors cannot reach this client at %s; what ranks say is fetched by Spark's tasks, which take one slot."
            " SPARK_LOCAL_IP names another address of it",
            host,
        )
    return not said


def _knock(address: tuple[str, int], secret: bytes) -> list[str]:
    """What is in the way to a client. Runs in a task."""
    try:
        Sender(address, secret=secret, patience=KNOCK_SECONDS, rank=0).close()
    except ConnectionError as error:
        return [str(error)]
    return [""]


def _told(error: PySparkException) -> str:
    """What gRPC says in the middle of a long text, or what Spark says in its first line."""
    details = re.search(r'details = "(.*)"', str(error))
    return details[1] if details else str(error).partition("\n")[0]
