"""Delivers records to MLflow: in a background thread during a run, and by `sync` afterwards.

Both run on the driver; `sync` also runs on any other machine that has access to the spool folder.
"""

import logging
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass

from sparkdl.errors import TrackingError
from sparkdl.masking import MASK, without_credentials
from sparkdl.settings import Tracking
from sparkdl.tracking.delivery import Delivery
from sparkdl.tracking.journal import Entry, Journal, read_header
from sparkdl.tracking.registry import Registered
from sparkdl.tracking.store import our_calls, tracking_uri

__all__ = ["Courier", "Synced", "sync"]

log = logging.getLogger(__name__)

FLUSH_SECONDS = 2.0  # often enough to watch a curve grow
LONGEST_PAUSE = 60.0  # seconds between two attempts while the store does not answer
PATIENCE = 30.0  # seconds that a run waits in total for a store that does not answer
HURRIED = 5.0  # the same, after an interrupt
ATTEMPTS = 3  # failures in a row without progress, after which `sync` gives up


class Courier(threading.Thread):
    """A thread that delivers a journal until it is stopped, and then closes the journal."""

    def __init__(self, journal: Journal, delivery: Delivery) -> None:
        super().__init__(name="mlflow-courier", daemon=True)
        self._journal, self._delivery = journal, delivery
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._patience = PATIENCE
        self._failures = 0
        self.outage = ""
        """The reason why nothing can be delivered at the moment; empty if there is no outage."""

    def wait_for(self, entry: Entry, *, uploading: bool) -> bool:
        """Wait until the store has accepted or refused the entry; returns False if the store is away for too long.

        :data:`PATIENCE` limits the sum of all waits of a run; the time of an upload in progress does not count.
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
        """Limit further waits to :data:`HURRIED`, because a person has pressed Ctrl-C."""
        self._patience = min(self._patience, HURRIED)

    def stop(self) -> None:
        """Stop after the current call, and wait a moment for that."""
        self._stopped.set()
        self._wake.set()
        self.join(timeout=2)

    def run(self) -> None:
        """Deliver every few seconds; during an outage, with growing pauses."""
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


@dataclass(frozen=True)
class Synced:
    """The result of :func:`sync` for one run."""

    run_id: str
    """The run's id in MLflow, or the name of its folder if it has no id yet."""
    delivered: int
    """The number of records that the store has now accepted or refused."""
    left: int
    """The number of records that are still to be delivered."""
    registered: tuple[Registered, ...]
    """The model versions that have now been registered."""
    reason: str
    """The reason why records are left or were refused; empty if there are none."""

    def __str__(self) -> str:
        parts = [f"run {self.run_id}: {self.delivered} records delivered"]
        parts += [f"{self.left} left"] if self.left else []
        parts += [self.reason] if self.reason else []
        return "; ".join(parts + [f"{made.uri} registered, {made.reason}" for made in self.registered])


def sync(settings: Tracking | None = None) -> list[Synced]:
    """Deliver all records in ``settings.spool`` that MLflow does not have yet, in order, and each once.

    It may be called at any time and repeatedly: runs in progress are left out, and no record is delivered twice. A run
    whose process was killed is marked as KILLED.
    """
    settings = settings or Tracking()
    with our_calls():
        return list(_sync(settings))


def _sync(settings: Tracking) -> Iterator[Synced]:
    store = without_credentials(tracking_uri(settings))
    for folder in Journal.folders(settings.spool):
        run_id = folder.name
        try:
            run_id = read_header(folder).get("run_id") or run_id
            journal = Journal(folder)
        except FileNotFoundError:
            continue  # the run's own process has just delivered the rest
        except TrackingError as error:
            if folder.exists():
                yield Synced(run_id, 0, 0, (), str(error))
            continue
        try:
            its_store = str(journal.header.get("store", "unknown"))
            if _place(its_store) == _place(store):
                yield _deliver(journal, settings)
            else:
                reason = f"its store is {its_store}, not {store}; set tracking.uri"
                yield Synced(run_id, 0, len(journal.pending), (), reason)
        finally:
            journal.close()


def _place(store: str) -> str:
    """The address without user and password, which do not change where the records are."""
    return without_credentials(store).replace(f"{MASK}@", "")


def _deliver(journal: Journal, settings: Tracking) -> Synced:
    journal.note(handed_out=False)
    if not journal.header["ended"]:
        end = {"status": "KILLED", "time": time.time_ns() // 1_000_000, "opened_as": journal.header["opened_as"]}
        journal.append("end", end)
        journal.note(ended=True)
    answers = [entry.answer for entry in journal.pending]
    try:
        _insist(journal, Delivery(journal, settings))
        refused = [str(answer.exception()) for answer in answers if answer.exception()]
        reason = f"refused: {refused[0]}" if refused else ""
    except TrackingError as error:
        reason = str(error)
    registered = tuple(made for made in map(_result, answers) if isinstance(made, Registered))
    run_id = journal.header.get("run_id") or journal.folder.name
    return Synced(run_id, len(answers) - len(journal.pending), len(journal.pending), registered, reason)


def _insist(journal: Journal, delivery: Delivery) -> None:
    """Deliver all entries; give up after :data:`ATTEMPTS` failures in a row without progress."""
    failures, left = 0, len(journal.pending)
    while True:
        try:
            return delivery.deliver()
        except TrackingError:
            failures, left = (failures + 1 if len(journal.pending) == left else 1), len(journal.pending)
            if failures == ATTEMPTS:
                raise
        time.sleep(failures)


def _result(answer: "Future[object]") -> object:
    return answer.result() if answer.done() and not answer.exception() else None
