"""Work that is dealt in small portions to whoever is free. Runs where the coordinator does."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Portions"]

COPIES = 2  # how many workers may do one portion at a time: with a third, more is done for nothing than is won


class Portions:
    """Each portion is done once, by whoever is first.

    What a lost worker had is dealt again. When everything is dealt, workers that are free do portions a second time
    that others have not finished: at the end nobody waits for the slowest (backup tasks: Dean et al., 2012).
    """

    def __init__(self, orders: Sequence[Mapping[str, Any]], *, at_once: int | None = None) -> None:
        """``orders`` say what is to be done; at most ``at_once`` workers get one."""
        self.orders, self._at_once = orders, at_once
        self.results: dict[int, Any] = {}
        """By the number of the portion: what came of it."""
        self.backups = self.backups_won = 0
        """Portions that were dealt a second time while a worker had them, and those of which the second was first."""
        self._free = deque(range(len(orders)))
        self._holders: dict[int, list[str]] = {number: [] for number in range(len(orders))}
        self._dealt: set[int] = set()

    @property
    def finished(self) -> bool:
        """Whether everything is done."""
        return len(self.results) == len(self.orders)

    def take(self, worker: str) -> tuple[int, dict[str, Any]] | None:
        """A portion's number and its order, with ``again`` if somebody may have done a part of it; None for now."""
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
        """Note that a portion is done; says whether it is the first time."""
        if number in self.results:
            return False
        self.results[number] = result
        self.backups_won += self._holders[number][1:] == [worker]
        self._holders[number] = []
        if number in self._free:  # it was taken from a worker that was thought to be lost
            self._free.remove(number)
        return True

    def give_back(self, worker: str, number: int | None = None) -> None:
        """Deal again what a worker has, or one portion of it."""
        for each in self._holders if number is None else [number]:
            if worker in self._holders[each]:
                self._holders[each].remove(worker)
                if not self._holders[each]:
                    self._free.appendleft(each)

    def has_any(self, worker: str) -> bool:
        """Whether a worker has something to do."""
        return any(worker in holders for holders in self._holders.values())

    def _slowest(self, worker: str) -> int | None:
        """The portion that one other worker has, for longest."""
        possible = (
            number
            for number in self._holders
            if self._holders[number] and worker not in self._holders[number] and len(self._holders[number]) < COPIES
        )
        return next(possible, None)
