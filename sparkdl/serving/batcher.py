"""Answers concurrent requests in batches. Runs in one event loop; a thread beside it computes the answers."""

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

__all__ = ["Batcher"]


class _Question(Protocol):
    @property
    def count(self) -> int: ...
    @property
    def params(self) -> Hashable: ...


Q = TypeVar("Q", bound=_Question)
A = TypeVar("A")


@dataclass(eq=False)
class _Waiting(Generic[Q, A]):
    question: Q
    answer: "asyncio.Future[A]"
    since: float
    """When the question arrived, in seconds of the event loop's clock."""


@dataclass(eq=False)
class Batcher(Generic[Q, A]):
    """Hands all waiting questions to ``answer_all`` as one batch, in the order in which they arrived.

    While a batch is answered, new questions gather for the next one. So batches grow with the load, and a single
    question does not wait.
    """

    answer_all: Callable[[Sequence[Q]], Sequence[A | Exception]]
    """Takes questions with the same ``params``, and returns for each its answer or its error."""
    max_rows: int
    """The most rows of a batch. A question with more rows is a batch by itself."""
    max_wait: float = 0.0
    """The most seconds that the first question of a batch waits for others."""
    answered: Callable[[int], None] = lambda rows: None
    """Called after each batch with its number of rows."""
    _queue: "deque[_Waiting[Q, A]]" = field(default_factory=deque, init=False)
    _came: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def ask(self, question: Q) -> A:
        """The answer. Raises the exception that ``answer_all`` returned for this question."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting[Q, A](question, loop.create_future(), loop.time())
        self._queue.append(waiting)
        self._came.set()
        return await waiting.answer

    async def run(self) -> None:
        """Answer questions until this task is cancelled."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="answers") as thread:
            while True:
                await self._gather()
                batch = self._take()
                questions = [waiting.question for waiting in batch]
                try:
                    answers = await loop.run_in_executor(thread, self.answer_all, questions)
                except Exception as error:
                    answers = [error] * len(batch)
                self.answered(sum(question.count for question in questions))
                for waiting, answer in zip(batch, answers, strict=True):
                    if waiting.answer.done():  # cancelled: the client has disconnected
                        continue
                    if isinstance(answer, Exception):
                        waiting.answer.set_exception(answer)
                    else:
                        waiting.answer.set_result(answer)

    async def _gather(self) -> None:
        """Wait for a question, then for more until ``max_wait`` has passed or the batch is full."""
        while not self._queue:
            self._came.clear()
            await self._came.wait()
        end = self._queue[0].since + self.max_wait
        with suppress(TimeoutError):
            while self.max_wait and sum(waiting.question.count for waiting in self._queue) < self.max_rows:
                self._came.clear()
                async with asyncio.timeout_at(end):
                    await self._came.wait()

    def _take(self) -> "list[_Waiting[Q, A]]":
        """The first question, and those that follow with the same ``params``, up to ``max_rows``."""
        batch = [self._queue.popleft()]
        rows, params = batch[0].question.count, batch[0].question.params
        while self._queue and self._queue[0].question.params == params:
            rows += self._queue[0].question.count
            if rows > self.max_rows:
                break
            batch.append(self._queue.popleft())
        return batch
