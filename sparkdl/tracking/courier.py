"""Delivery while training goes on: a thread that notices outages, waits them out, and never holds anybody up.

Runs on the driver.
"""

import logging
import threading
from concurrent.futures import wait

from sparkdl.errors import TrackingError
from sparkdl.tracking.delivery import Delivery
from sparkdl.tracking.journal import Entry, Journal

__all__ = ["Courier"]

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0  # often enough to watch a curve grow
LONGEST_PAUSE = 60.0  # seconds between two attempts when nobody answers
PATIENCE = 30.0  # seconds that the end of a run waits for a store that does not answer, all in all
HURRIED = 5.0  # seconds, when somebody waits for the run to go away


class Courier(threading.Thread):
    """Delivers a journal until it is stopped, then lets go of it."""

    def __init__(self, journal: Journal, delivery: Delivery) -> None:
        super().__init__(name="mlflow-courier", daemon=True)
        self._journal, self._delivery = journal, delivery
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._patience = PATIENCE
        self._failures = 0
        self.outage = ""
        """Why nothing can be delivered at the moment; empty when all is well."""

    def wait_for(self, entry: Entry, *, uploading: bool) -> bool:
        """Whether the store has taken or refused the entry; gives up when it has been unable to for too long.

        All waiting for one run shares :data:`PATIENCE`; time in which an upload goes on does not count.
        """
        failures = self._failures
        while not wait([entry.answer], timeout=0).done:
            self._wake.set()
            wait([entry.answer], timeout=1)
            self._patience -= 1 if self.outage or not uploading else 0
            if self._patience <= 0 and (self._failures > failures or not uploading):
                return entry.answer.done()
        return True

    def hurry(self) -> None:
        """Wait no longer than the moment that a person who pressed Ctrl-C has."""
        self._patience = min(self._patience, HURRIED)

    def stop(self) -> None:
        """End after the call that is in flight, and wait a moment for that."""
        self._stopped.set()
        self._wake.set()
        self.join(timeout=2)

    def run(self) -> None:
        """Deliver every few seconds; during an outage, less and less often."""
        pause = FLUSH_SECONDS
        self._wake.set()
        while not self._stopped.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            self._journal.sync()
            try:
                self._delivery.deliver(going_on=lambda: not self._stopped.is_set())
            except TrackingError as error:
                if not self.outage:
                    message = "training goes on, its records are kept in %s: %s"
                    log.warning(message, self._journal.folder, error)
                self.outage = str(error)
                self._failures += 1
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                cut_short = self._stopped.is_set() and self._journal.pending
                if self.outage and not cut_short:
                    log.warning("MLflow can be reached again; everything that was kept has been delivered")
                self.outage, pause = "", FLUSH_SECONDS
        self._journal.close()
