"""The line to ranks that cannot reach the client: Spark tasks fetch what they say. Runs on the driver, but for them.

Where they say it is in :mod:`sparkdl.cluster.meeting_place`.
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
CLOSE_SECONDS = 5.0  # how long the order to end may take
GONE = "gone"

logger = logging.getLogger("sparkdl")


class Relay:
    """Does for a launch what a :class:`~sparkdl.cluster.channel.Channel` does.

    Tasks need a slot: that of the stage's first task, which says where the meeting place is and ends.
    """

    def __init__(self, spark: SparkSession, *, size: int) -> None:
        self._spark = spark
        self._open = set(range(size))
        self._known = 0
        self._stop_requested = self._closed = False
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="sparkdl-relay", daemon=True)

    def open(self, *, secret: bytes, token: str, events: "queue.SimpleQueue[Any]") -> None:
        """Take part in a run."""
        self._secret, self._token, self._events = secret, token, events
        self._reader = kept_reader(secret)

    def find(self, host: str, port: int) -> None:
        """Begin to listen to the meeting place that has been found there."""
        self._address = RendezvousAddress(host, port, self._token)
        if not self._closed:
            self._thread.start()

    def request_stop(self) -> None:
        """Ask all ranks to come to an end."""
        if not self._stop_requested:
            self._stop_requested = True
            self._hurry.set()

    def close(self) -> None:
        """End the meeting place; ranks that still run take it as the order to end at once."""
        self._closed = True
        self._hurry.set()
        with suppress(RuntimeError):  # there never was a meeting place
            self._thread.join(CLOSE_SECONDS)

    def _follow(self) -> None:
        while True:
            last = self._closed or not self._open  # that all have left is known, which the meeting place waits to hear
            try:
                if not self._listen() or last:
                    return
            except Exception as error:  # whoever is not heard for too long is given up by the watchdog
                logger.debug("what ranks say could not be fetched: %s", error)
                if self._closed:
                    return
            if self._open:
                self._hurry.wait(PAUSE_SECONDS)
                self._hurry.clear()

    def _listen(self) -> bool:
        """Put into the run's events what ranks have said since the last time. False when nobody is there any more."""
        said = order(self._secret, known=self._known, stop=self._stop_requested, end=self._closed)
        with IndependentTasks(self._spark) as tasks:
            fetching = partial(_fetched, self._address, said)
            (line,) = tasks.submit(fetching, description="sparkdl: what ranks say").result()
        if line == GONE:
            if 0 in self._open:  # with it the meeting place has gone
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
