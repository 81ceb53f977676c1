"""Sandblaster L-BFGS (Dean et al., 2012): the coordinator sends orders and receives scalars. Runs with the coordinator.

Each evaluation of loss and gradient deals all rows to free workers, in portions that are far smaller than a worker's
share. When all are dealt, unfinished ones are dealt a second time, and the first answer counts. Losses are rounded once
when they are added up, and gradients are added as integers: both sums are the same to the last bit, whichever worker
computed which portion.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from sparkdl.settings.strategies import SandblasterOptions
from sparkdl.training.asynchronous.epochs import RETRY_SECONDS, Epochs
from sparkdl.training.asynchronous.lbfgs import LBFGS, Value, Vectors
from sparkdl.training.asynchronous.merged import Merged
from sparkdl.training.asynchronous.portions import Portions

__all__ = ["Sandblaster"]

log = logging.getLogger(__name__)


class Sandblaster(Epochs):
    """A run in which each epoch is one step of L-BFGS. It ends early when no lower loss can be found."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        options = self._settings.strategy
        assert isinstance(options, SandblasterOptions)
        portions = min(options.portions, self._dataset.rows("train"))
        self._vectors = _VectorsOfServers(self._recorder.at_servers, self._deal, portions=portions)
        self._lbfgs: LBFGS | None = None

    @override
    def _over(self) -> bool:
        return super()._over() or (self._lbfgs is not None and self._lbfgs.converged)

    @override
    def _train(self, started: float) -> list[Portions]:
        state, epochs = self._state, self._settings.epochs
        self._send("epoch_started", epoch=state.epoch, epochs=epochs, step=state.step, total=epochs)
        self._vectors.dealt = []
        while True:
            try:
                if self._lbfgs is None:
                    self._vectors.begin()
                    self._lbfgs = LBFGS(self._vectors)
                self._lbfgs.step()
                return self._vectors.dealt
            except ConnectionError:
                log.warning("servers have changed; L-BFGS starts again from their current parameters")
                self._lbfgs = None
                self._begin_anew()

    @override
    def _merged(self) -> Merged:
        if not self._vectors.dealt:
            return Merged([], 0.0, 0, Counter())
        results = self._vectors.dealt[-1].results.values()
        loss = math.fsum(result["loss"] for result in results)
        *totals, rows = map(math.fsum, zip(*(result["figures"] for result in results), strict=True))
        return Merged([loss * rows, *totals], rows, 1, Counter())

    def _deal(self, orders: list[dict[str, Any]]) -> Portions:
        portions = self._coordinator.deal(orders)
        self._finish(portions)
        return portions

    def _begin_anew(self) -> None:
        """Have all servers forget their steps: those of a restarted server differ from the others'."""
        while True:
            time.sleep(RETRY_SECONDS)
            self._crew.wait(lambda: self._coordinator.serving, self._beat)
            try:
                self._recorder.at_servers("forget")
                return
            except ConnectionError:  # a replacement will start
                continue


class _VectorsOfServers(Vectors):
    """The vectors that servers hold. Methods raise ConnectionError when a server is lost or was restarted."""

    def __init__(
        self,
        at_servers: Callable[..., Sequence[Mapping[str, Any]]],
        deal: Callable[[list[dict[str, Any]]], Portions],
        *,
        portions: int,
    ) -> None:
        """``deal`` has workers carry out orders, and returns when all are done."""
        self._at_servers, self._deal, self._count = at_servers, deal, portions
        self._evaluation = 0
        self.dealt: list[Portions] = []
        """The portions of each evaluation since the list was emptied."""

    def begin(self) -> None:
        """Continue the count of evaluations from the last one that servers know."""
        self._evaluation = max(tally["round"] for tally in self._at_servers("tally"))

    @override
    def move(self, rate: float) -> Value:
        self._evaluation += 1
        self._call("move", rate=rate, number=self._evaluation)
        order = {"kind": "gradient", "evaluation": self._evaluation, "portions": self._count}
        portions = self._deal([{**order, "portion": number} for number in range(self._count)])
        self.dealt.append(portions)
        loss = math.fsum(result["loss"] for result in portions.results.values())
        return Value(loss, math.fsum(answer["slope"] for answer in self._call("slope")))

    @override
    def accept(self, *, keep: bool) -> None:
        self._call("accept", keep=keep)

    @override
    def products(self) -> NDArray[np.float64]:
        found: NDArray[np.float64] = np.array([answer["products"] for answer in self._call("products")]).sum(axis=0)
        return found

    @override
    def turn(self, coefficients: Sequence[float]) -> None:
        self._call("turn", coefficients=coefficients)

    def _call(self, name: str, **keywords: Any) -> Sequence[Mapping[str, Any]]:
        answers = self._at_servers(name, **keywords)
        if any(answer["evaluation"] != self._evaluation for answer in answers):
            raise ConnectionError("a server has restarted with an older state")
        return answers
