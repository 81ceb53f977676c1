"""The connection to ranks that cannot reach the client: Spark tasks fetch their messages. Runs on the driver.

The messages are kept in :mod:`sparkdl.cluster.meeting_place`.
"""

import base64
import logging
import queue
import threading
from contextlib import suppress
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from sparkdl.cluster.channel import Event
from sparkdl.cluster.independent_tasks import IndependentTasks
from sparkdl.cluster.meeting_place import fetch, kept_reader, order
from sparkdl.cluster.rendezvous import RendezvousAddress

__all__ = ["Relay"]

PAUSE_SECONDS = 0.5  # between two tasks
CLOSE_SECONDS = 5.0  # the time for delivering the order to end
GONE = "gone"

logger = logging.getLogger("sparkdl")


class Relay:
    """Has the same interface to a launch as a :class:`~sparkdl.cluster.channel.Channel`.

    The tasks need a slot. They use that of the stage's first task, which reports where the meeting place is and ends.
    """

    def __init__(self, spark: SparkSession, *, size: int) -> None:
        self._spark = spark
        self._open = set(range(size))
        self._known = 0
        self._stop_requested = self._closed = False
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="sparkdl-relay", daemon=True)

    def open(self, *, secret: bytes, token: str, events: "queue.SimpleQueue[Any]") -> None:
        """Start to take part in a run."""
        self._secret, self._token, self._events = secret, token, events
        self._reader = kept_reader(secret)

    def find(self, host: str, port: int) -> None:
        """Start to fetch messages from the meeting place at this address."""
        self._address = RendezvousAddress(host, port, self._token)
        if not self._closed:
            self._thread.start()

    def request_stop(self) -> None:
        """Ask all ranks to stop."""
        if not self._stop_requested:
            self._stop_requested = True
            self._hurry.set()

    def close(self) -> None:
        """End the meeting place. Ranks that still run end at once."""
        self._closed = True
        self._hurry.set()
        with suppress(RuntimeError):  # the thread was never started: no meeting place was found
            self._thread.join(CLOSE_SECONDS)

    def _follow(self) -> None:
        while True:
            last = self._closed or not self._open  # the meeting place ends when it learns that all ranks have left
            try:
                if not self._listen() or last:
                    return
            except Exception as error:  # if this continues, the watchdog declares the ranks silent
                logger.debug("the messages of ranks could not be fetched: %s", error)
                if self._closed:
                    return
            if self._open:
                self._hurry.wait(PAUSE_SECONDS)
                self._hurry.clear()

    def _listen(self) -> bool:
        """Fetch the new messages of ranks into the run's events. False if the meeting place has ended."""
        said = order(self._secret, known=self._known, stop=self._stop_requested, end=self._closed)
        with IndependentTasks(self._spark) as tasks:
            fetching = partial(_fetched, self._address, said)
            (line,) = tasks.submit(fetching, description="sparkdl: messages of ranks").result()
        if line == GONE:
            if 0 in self._open:  # rank 0 has ended, and the meeting place with it
                self._events.put(Event(0, "gone", {}))
            return False
        for topic, heard in self._reader.feed(base64.b64decode(line)):
            self._known += 1
            self._events.put(Event(heard["rank"], topic, heard["body"]))
            if topic in ("bye", "gone"):
                self._open.discard(heard["rank"])
        return True


def _fetched(address: RendezvousAddress, said: bytes) -> list[str]:
    answer = fetch(address, said)
    return [GONE if answer is None else base64.b64encode(answer).decode()]
