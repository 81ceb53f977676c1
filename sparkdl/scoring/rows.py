"""Scores rows of which some may be invalid: finds these and the reasons, and scores all others. Runs anywhere."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.errors import DataError
from sparkdl.scoring.predictor import Predictor
from sparkdl.scoring.raw_inputs import ReadRows, reason_of

__all__ = ["answer_each", "answer_inputs", "refusal"]

_SHOWN = 3
"""The most reasons that an error lists."""


def answer_inputs(
    predictor: Predictor, inputs: ReadRows, *, top_k: int, batch_size: int
) -> tuple[list[pa.Array], pa.Array | None]:
    """The result of ``predictor.answer``, null for rows that are refused or fail, and the reasons for these.

    The reasons are null for rows that were scored, and None if all rows were scored.
    """
    column, refused = inputs
    if refused is not None:
        kept = np.flatnonzero(np.asarray(refused.is_null()))
        answers, reasons = answer_inputs(
            predictor, ReadRows(column.take(pa.array(kept)), None), top_k=top_k, batch_size=batch_size
        )
        places = np.full(len(column), -1)
        places[kept] = np.arange(len(kept))
        taken = pa.array(places, mask=places < 0)
        reasons = refused if reasons is None else pc.coalesce(refused, reasons.take(taken))
        return [answer.take(taken) for answer in answers], reasons
    try:
        return predictor.answer(column, top_k=top_k, batch_size=batch_size), None
    except MemoryError:
        raise
    except Exception as error:
        _raise_cuda_errors(error)
        return answer_each(predictor, column, top_k=top_k, batch_size=batch_size)


def answer_each(
    predictor: Predictor, column: pa.Array, *, top_k: int, batch_size: int
) -> tuple[list[pa.Array], pa.Array]:
    """The same for rows of which some are known to fail.

    Rows are tried ``batch_size`` at a time. A batch that fails is halved until the failing rows are found; a few of
    them cost a few small forward passes. Any exception counts as a failure of the row, whatever its class.
    """
    answers: list[list[pa.Array]] = []
    reasons: list[str | None] = []
    for start in range(0, len(column), batch_size):
        for answer, reason in _tried(predictor, column.slice(start, batch_size), top_k, batch_size):
            answers.append(answer)
            reasons += [reason] * len(answer[0])
    return [pa.concat_arrays(parts) for parts in zip(*answers, strict=True)], pa.array(reasons, pa.string())


def refusal(reasons: pa.Array) -> DataError | None:
    """The error that lists the most frequent reasons, with numbers of rows; None if all reasons are null."""
    counts = Counter(reason for reason in reasons.to_pylist() if reason is not None)
    if not counts:
        return None
    shown = [f"{reason} in {count:,} rows" for reason, count in counts.most_common(_SHOWN)]
    more = f"; and {len(counts) - _SHOWN:,} more" if len(counts) > _SHOWN else ""
    return DataError(f"{'; '.join(shown)}{more}")


def _tried(
    predictor: Predictor, column: pa.Array, top_k: int, batch_size: int
) -> Iterator[tuple[list[pa.Array], str | None]]:
    try:
        yield predictor.answer(column, top_k=top_k, batch_size=batch_size), None
        return
    except MemoryError:
        raise
    except Exception as error:
        _raise_cuda_errors(error)
        if len(column) == 1:
            yield [pa.nulls(1, kind) for kind in predictor.task.answer.types], reason_of(error)
            return
    half = len(column) // 2
    for part in (column.slice(0, half), column.slice(half)):
        yield from _tried(predictor, part, top_k, batch_size)


def _raise_cuda_errors(error: Exception) -> None:
    """Raise a CUDA error again: after it, the GPU fails for every row of this process, so the row is not to blame."""
    if isinstance(error, RuntimeError) and "CUDA error" in str(error):
        raise error
