"""Rows that are equal get numbers, from the facts that tasks keep of them; see :mod:`sparkdl.data.preparing.draw`.

A task counts how often it has each row, and where the counts of all tasks meet, each task is told from which number on
its own rows go. So a table of a few different rows sends a few counts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sparkdl.data.preparing.blocks import keys_for, to_message
from sparkdl.data.preparing.row_facts import FactsPlan, from_message, numbered_facts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["BLOCKS", "numbered"]

BLOCKS = "task int, number int, facts binary"
"""The facts of a task's rows, batch by batch as these are read; null where Spark has to be asked."""
_BITS = 10
"""Hashes that begin with the same bits meet in one task."""
_COUNTED = "part int, task int, counts binary"
_FIRSTS = "key int, task int, number int, facts binary, firsts binary"
_NO_NUMBER = -1


def numbered(blocks: "DataFrame", tasks: int, plan: FactsPlan) -> "DataFrame":
    """The blocks of facts, of rows that are numbered. Runs on the driver, lazily. A task holds the facts of its rows.

    ``blocks`` are those of :class:`~sparkdl.data.preparing.known_rows.KnownRows`, of so many tasks.
    """
    keys = keys_for(tasks, tasks)

    def keyed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            task = batch.column(0).to_numpy()
            nothing = pa.nulls(len(batch), pa.binary())
            yield _batch(_FIRSTS, [pa.array(keys[task]), *batch.columns, nothing])

    counted = blocks.mapInArrow(_counted, _COUNTED).repartition("part").mapInArrow(_firsts(keys), _FIRSTS)
    met = blocks.mapInArrow(keyed, _FIRSTS).unionByName(counted).repartition(tasks, "key")
    return met.mapInArrow(_numberer(plan), BLOCKS)


def _batch(schema: str, arrays: list[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(arrays, [each.split()[0] for each in schema.split(", ")])


def _counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """How often a task has each row, in the order of their hashes, cut by these."""
    facts: dict[int, list[pa.RecordBatch]] = defaultdict(list)
    for batch in batches:
        for task, message in zip(batch.column("task").to_pylist(), batch.column("facts"), strict=True):
            facts[task].append(from_message(message).select(["content", "draw"]))
    for task, own in facts.items():
        content, draw, _, counts = _runs(*_hashes(own))
        parts, begins = np.unique(content >> (64 - _BITS), return_index=True)
        cuts = zip(begins, [*begins[1:], len(content)], strict=True)
        messages = [_message(content[begin:end], draw[begin:end], counts[begin:end]) for begin, end in cuts]
        places = pa.array(np.full(len(parts), task, np.int32))
        yield _batch(_COUNTED, [pa.array(parts.astype(np.int32)), places, pa.array(messages, pa.binary())])


def _firsts(keys: NDArray[np.int32]) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Tells each task how many rows come before its own, of those that are equal to them."""

    def firsts(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        sent: dict[int, list[tuple[int, list[NDArray[np.int64]]]]] = defaultdict(list)
        for batch in batches:
            parts, tasks = (column.to_pylist() for column in batch.columns[:2])
            for part, task, message in zip(parts, tasks, batch.column(2), strict=True):
                sent[part].append((task, _arrays(message)))
        for found in sent.values():
            of_task = np.concatenate([np.full(len(arrays[0]), task) for task, arrays in found])
            content, draw, counts = (
                np.concatenate(each) for each in zip(*[arrays for _, arrays in found], strict=True)
            )
            order = np.lexsort((of_task, draw, content))
            content, counts, of_task = content[order], counts[order], of_task[order]
            begins = np.flatnonzero(np.diff(content, prepend=content[0] - 1))
            lengths = np.diff(begins, append=len(content))
            before = np.cumsum(counts) - counts
            first = before - np.repeat(before[begins], lengths)
            several = np.repeat(np.add.reduceat(counts, begins) > 1, lengths)
            for task in np.unique(of_task[several]):
                own = several & (of_task == task)
                message = pa.array([_message(content[own], first[own])], pa.binary())
                numbers = [pa.array([number], pa.int32()) for number in (keys[task], task, _NO_NUMBER)]
                yield _batch(_FIRSTS, [*numbers, pa.nulls(1, pa.binary()), message])

    return firsts


def _numberer(plan: FactsPlan) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def number(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        blocks: dict[int, dict[int, pa.RecordBatch]] = defaultdict(dict)
        firsts: dict[int, list[list[NDArray[np.int64]]]] = defaultdict(list)
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("task", "number"))
            for task, place, facts, told in zip(*columns, batch.column("facts"), batch.column("firsts"), strict=True):
                if place == _NO_NUMBER:
                    firsts[task].append(_arrays(told))
                else:
                    blocks[task][place] = from_message(facts)
        for task, own in sorted(blocks.items()):
            in_order = [own[place] for place in sorted(own)]
            for place, facts in enumerate(_numbered(in_order, firsts[task], plan)):
                arrays = [pa.array([task], pa.int32()), pa.array([place], pa.int32()), pa.array([to_message(facts)])]
                yield _batch(BLOCKS, arrays)

    return number


def _numbered(
    blocks: list[pa.RecordBatch], firsts: list[list[NDArray[np.int64]]], plan: FactsPlan
) -> Iterator[pa.RecordBatch]:
    """All blocks of a task, with the numbers of their rows in their hashes."""
    if not firsts:
        yield from blocks
        return
    content, draw = _hashes(blocks)
    runs, _, order, counts = _runs(content, draw)
    numbers = np.zeros(len(content), np.int64)
    before = np.zeros(len(runs), np.int64)
    told, first = (np.concatenate(each) for each in zip(*firsts, strict=True))
    in_order = np.argsort(told, kind="stable")  # those of one content come in the order of their draws
    told, first = told[in_order], first[in_order]
    again = np.arange(len(told)) - np.searchsorted(told, told, "left")
    before[np.searchsorted(runs, told, "left") + again] = first
    begins = np.cumsum(counts) - counts
    numbers[order] = np.arange(len(content)) - np.repeat(begins, counts) + np.repeat(before, counts)
    begin = 0
    for facts in blocks:
        of_rows = numbers[begin : begin + len(facts)]
        later = np.flatnonzero(of_rows)
        yield numbered_facts(facts, later, (of_rows[later] + 1).astype(np.int32), plan) if len(later) else facts
        begin += len(facts)


def _hashes(facts: list[pa.RecordBatch]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    content, draw = (np.concatenate([each.column(name).to_numpy() for each in facts]) for name in ("content", "draw"))
    return content, draw


def _runs(
    content: NDArray[np.int64], draw: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.intp], NDArray[np.int64]]:
    """The rows that differ, sorted; the order of all rows in which equal ones stand together; how many these are."""
    order = np.lexsort((draw, content))
    content, draw = content[order], draw[order]
    new = (np.diff(content, prepend=content[0] - 1) != 0) | (np.diff(draw, prepend=draw[0]) != 0)
    begins = np.flatnonzero(new)
    return content[begins], draw[begins], order, np.diff(begins, append=len(content))


def _message(*arrays: NDArray[np.int64]) -> bytes:
    return to_message(pa.RecordBatch.from_arrays(list(map(pa.array, arrays)), list(map(str, range(len(arrays))))))


def _arrays(message: pa.Scalar) -> list[NDArray[np.int64]]:
    return [column.to_numpy() for column in from_message(message).columns]
