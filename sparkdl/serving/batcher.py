"""What is asked at a time is answered together. Runs in one event loop; answers are computed in a thread beside it."""

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
    """By the event loop's clock."""


@dataclass(eq=False)
class Batcher(Generic[Q, A]):
    """Hands questions to ``answer_all``, in the order in which they came, as many at once as there are.

    While some are answered, others gather; so batches grow with the load, and a lone question does not wait.
    """

    answer_all: Callable[[Sequence[Q]], Sequence[A | Exception]]
    """Answers questions of the same ``params``, or says what is wrong with each."""
    max_rows: int
    """Of a batch; a question of more rows is a batch by itself."""
    max_wait: float = 0.0
    """Seconds that the first question of a batch waits for others, at most."""
    answered: Callable[[int], None] = lambda rows: None
    """Is told the rows of each batch."""
    _queue: "deque[_Waiting[Q, A]]" = field(default_factory=deque, init=False)
    _came: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def ask(self, question: Q) -> A:
        """The answer, or what is wrong with the question as the exception that it is."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting[Q, A](question, loop.create_future(), loop.time())
        self._queue.append(waiting)
        self._came.set()
        return await waiting.answer

    async def run(self) -> None:
        """Answer until it is cancelled."""
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
                    if waiting.answer.done():  # nobody waits any more
                        continue
                    if isinstance(answer, Exception):
                        waiting.answer.set_exception(answer)
                    else:
                        waiting.answer.set_result(answer)

    async def _gather(self) -> None:
        """Wait for a question, and for more while there is time and room."""
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
        """The first question, and those behind it that fit to it."""
        batch = [self._queue.popleft()]
        rows, params = batch[0].question.count, batch[0].question.params
        while self._queue and self._queue[0].question.params == params:
            rows += self._queue[0].question.count
            if rows > self.max_rows:
                break
            batch.append(self._queue.popleft())
        return batch
