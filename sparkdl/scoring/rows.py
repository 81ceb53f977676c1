"""Which rows cannot be scored, and why; all others are. Runs anywhere."""

from collections.abc import Iterator

import pyarrow as pa

from sparkdl.errors import DataError
from sparkdl.scoring.predictor import Predictor

__all__ = ["answer_each"]


def answer_each(
    predictor: Predictor, column: pa.Array, *, top_k: int, batch_size: int
) -> tuple[list[pa.Array], pa.Array]:
    """What ``predictor.answer`` says, null for rows that it cannot answer, and for these rows the reason.

    Rows are tried ``batch_size`` at a time, and what fails is halved until the rows that fail alone are found: a few of
    them cost a few small passes more. All that a row can make a model raise counts, whatever it is.
    """
    answers: list[list[pa.Array]] = []
    reasons: list[str | None] = []
    for start in range(0, len(column), batch_size):
        for answer, reason in _tried(predictor, column.slice(start, batch_size), top_k, batch_size):
            answers.append(answer)
            reasons += [reason] * len(answer[0])
    return [pa.concat_arrays(parts) for parts in zip(*answers, strict=True)], pa.array(reasons, pa.string())


def _tried(
    predictor: Predictor, column: pa.Array, top_k: int, batch_size: int
) -> Iterator[tuple[list[pa.Array], str | None]]:
    try:
        yield predictor.answer(column, top_k=top_k, batch_size=batch_size), None
        return
    except MemoryError:
        raise
    except Exception as error:
        if len(column) == 1:
            yield [pa.nulls(1, kind) for kind in predictor.task.answer.types], _reason(error)
            return
    half = len(column) // 2
    for part in (column.slice(0, half), column.slice(half)):
        yield from _tried(predictor, part, top_k, batch_size)


def _reason(error: Exception) -> str:
    text = next(iter(str(error).strip().splitlines()), "")
    return text if isinstance(error, DataError) else f"{type(error).__name__}: {text}"
