"""What is asked at a time is answered together, and nobody waits for nothing."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import pytest

from sparkdl.serving.batcher import Batcher


@dataclass(frozen=True)
class Question:
    name: str
    count: int = 1
    params: str = ""


class Slow:
    """Answers by name once it is let, and remembers what it was asked at once."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.may = threading.Event()

    def __call__(self, questions: Sequence[Question]) -> list[str | Exception]:
        self.batches.append([question.name for question in questions])
        assert self.may.wait(10)
        if any(question.name == "broken" for question in questions):
            raise RuntimeError("the network is broken")
        return [ValueError(each.name) if each.name == "wrong" else each.name.upper() for each in questions]


def ask(answer: Slow, questions: Sequence[Question], *, max_rows: int = 8, max_wait: float = 0.0) -> list[object]:
    """The answers to a first question, and to the others, which come while it is answered."""

    async def asking() -> list[object]:
        batcher: Batcher[Question, str] = Batcher(answer, max_rows, max_wait)
        running = asyncio.create_task(batcher.run())
        asked: list[Awaitable[str]] = [asyncio.create_task(batcher.ask(questions[0]))]
        while not answer.batches:
            await asyncio.sleep(0.001)
        asked += [asyncio.create_task(batcher.ask(each)) for each in questions[1:]]
        await asyncio.sleep(0.001)
        answer.may.set()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        running.cancel()
        return list(answers)

    return asyncio.run(asking())


def test_those_that_come_while_one_is_answered_are_answered_together() -> None:
    answer = Slow()
    assert ask(answer, [Question(name) for name in "abcd"]) == ["A", "B", "C", "D"]
    assert answer.batches == [["a"], ["b", "c", "d"]]


@pytest.mark.parametrize(
    ("questions", "batches"),
    [
        ([Question("b", 3), Question("c", 3), Question("d", 3)], [["b", "c"], ["d"]]),
        ([Question("b", 30), Question("c")], [["b"], ["c"]]),
        ([Question("b"), Question("c", params="x"), Question("d", params="x")], [["b"], ["c", "d"]]),
    ],
)
def test_a_batch_has_so_many_rows_at_most_and_the_same_parameters(
    questions: list[Question], batches: list[list[str]]
) -> None:
    answer = Slow()
    ask(answer, [Question("a"), *questions])
    assert answer.batches == [["a"], *batches]


def test_what_is_wrong_with_one_is_told_to_it_alone_and_a_broken_batch_does_not_end_the_others() -> None:
    answer = Slow()
    broken, wrong, good = ask(answer, [Question("broken"), Question("wrong"), Question("good")])
    assert isinstance(broken, RuntimeError) and isinstance(wrong, ValueError) and good == "GOOD"


def test_the_first_one_waits_for_others_as_long_as_it_is_told_to() -> None:
    seconds, batches = timed(lambda batcher: asyncio.gather(later(batcher, 0.0), later(batcher, 0.05)), max_wait=0.3)
    assert batches == [["0.0", "0.05"]] and 0.3 <= seconds < 2


def test_the_first_one_waits_no_longer_once_a_batch_is_full() -> None:
    seconds, batches = timed(
        lambda batcher: asyncio.gather(later(batcher, 0.0), later(batcher, 0.05)), max_wait=30, max_rows=2
    )
    assert batches == [["0.0", "0.05"]] and seconds < 10


async def later(batcher: Batcher[Question, str], seconds: float) -> str:
    await asyncio.sleep(seconds)
    return await batcher.ask(Question(str(seconds)))


def timed(
    asking: Callable[[Batcher[Question, str]], Awaitable[object]], *, max_wait: float, max_rows: int = 8
) -> tuple[float, list[list[str]]]:
    answer = Slow()
    answer.may.set()

    async def run() -> float:
        batcher: Batcher[Question, str] = Batcher(answer, max_rows, max_wait)
        running = asyncio.create_task(batcher.run())
        began = time.monotonic()
        await asking(batcher)
        running.cancel()
        return time.monotonic() - began

    return asyncio.run(run()), answer.batches
