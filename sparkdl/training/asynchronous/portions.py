"""Work in small portions that are dealt to free workers. Runs where the coordinator does."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Portions"]

COPIES = 2  # how many workers may have one portion at a time: a third would waste more time than it saves


class Portions:
    """Portions of work, each of which counts once: the first worker to finish it wins.

    The portions of a lost worker are dealt again. When all are dealt, free workers also get portions that others have
    not finished, so that the end does not wait for the slowest worker (backup tasks: Dean et al., 2012).
    """

    def __init__(self, orders: Sequence[Mapping[str, Any]], *, at_once: int | None = None) -> None:
        """``orders`` has one order per portion; at most ``at_once`` workers have portions at a time."""
        self.orders, self._at_once = orders, at_once
        self.results: dict[int, Any] = {}
        """By number of the portion: the result of the worker that finished it first."""
        self.backups = self.backups_won = 0
        """Portions dealt to a second worker while the first had them, and those that the second finished first."""
        self._free = deque(range(len(orders)))
        self._holders: dict[int, list[str]] = {number: [] for number in range(len(orders))}
        self._dealt: set[int] = set()

    @property
    def finished(self) -> bool:
        """Whether all portions are done."""
        return len(self.results) == len(self.orders)

    def take(self, worker: str) -> tuple[int, dict[str, Any]] | None:
        """A portion's number and order, with ``again`` if a part of it may be done; None if there is none for now."""
        workers = {holder for holders in self._holders.values() for holder in holders}
        if self._at_once is not None and len(workers | {worker}) > self._at_once:
            return None
        number = self._free.popleft() if self._free else self._slowest(worker)
        if number is None:
            return None
        self.backups += bool(self._holders[number])
        again = number in self._dealt
        self._dealt.add(number)
        self._holders[number].append(worker)
        return number, {**self.orders[number], "again": again or self.orders[number].get("again", False)}

    def finish(self, worker: str, number: int, result: Any) -> bool:
        """Record a result; returns whether it is the portion's first."""
        if number in self.results:
            return False
        self.results[number] = result
        self.backups_won += self._holders[number][1:] == [worker]
        self._holders[number] = []
        if number in self._free:  # the worker was considered lost, and has finished
            self._free.remove(number)
        return True

    def give_back(self, worker: str, number: int | None = None) -> None:
        """Take all portions of a worker back, or one of them, to be dealt again."""
        for each in self._holders if number is None else [number]:
            if worker in self._holders[each]:
                self._holders[each].remove(worker)
                if not self._holders[each]:
                    self._free.appendleft(each)

    def has_any(self, worker: str) -> bool:
        """Whether a worker has a portion."""
        return any(worker in holders for holders in self._holders.values())

    def _slowest(self, worker: str) -> int | None:
        """The first portion that other workers have, but not yet :data:`COPIES` of them."""
        possible = (
            number
            for number in self._holders
            if self._holders[number] and worker not in self._holders[number] and len(self._holders[number]) < COPIES
        )
        return next(possible, None)
