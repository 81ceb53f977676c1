"""When records are delivered: while a run goes on, by a thread that holds nobody up; afterwards, by `sync`.

Both run on the driver; `sync` also on any other machine that sees the spool.
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
LONGEST_PAUSE = 60.0  # seconds between two attempts when nobody answers
PATIENCE = 30.0  # seconds that the end of a run waits for a store that does not answer, all in all
HURRIED = 5.0  # seconds, when somebody waits for the run to go away
ATTEMPTS = 3  # of `sync` in a row that bring nothing along


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


@dataclass(frozen=True)
class Synced:
    """What became of one run's records."""

    run_id: str
    """Its id in MLflow; before it has one, the name of its folder."""
    delivered: int
    """Records that the store took now, or refused."""
    left: int
    """Records that are still kept."""
    registered: tuple[Registered, ...]
    """Versions of its models that were registered now."""
    reason: str
    """Why something is left, or was refused; empty when all is well."""

    def __str__(self) -> str:
        parts = [f"run {self.run_id}: {self.delivered} records delivered"]
        parts += [f"{self.left} left"] if self.left else []
        parts += [self.reason] if self.reason else []
        return "; ".join(parts + [f"{made.uri} registered, {made.reason}" for made in self.registered])


def sync(settings: Tracking | None = None) -> list[Synced]:
    """Deliver all records that are kept in ``settings.spool``, in order and each once.

    It may be called at any time and any number of times: runs in progress are not touched, and no record is delivered
    twice. A run whose process was killed is marked as KILLED.
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
            continue  # its own process has just delivered the rest
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
    """The address without who asks: another password, or none, still leads to the same records."""
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
    """Deliver everything; give up after a few failures without any progress between them."""
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
