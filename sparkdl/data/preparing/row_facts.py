"""What a task finds out about raw rows by itself: the hashes, the label and the split of each. Runs in tasks.

Where anything is wrong with a row, or is not as most tables have it, there are no facts: Spark is then asked, which
names the row.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.data.preparing.draw import shares
from sparkdl.data.preparing.row_hashes import hash_rows
from sparkdl.data.preparing.stacking import RowTest, fails
from sparkdl.preprocessing.hashes import SEED, xxhash64_of_numbers

__all__ = ["FactsPlan", "facts_of", "from_message", "numbered_facts", "splits_of"]

_TRAIN = "train"
_LONGS = float(1 << 63)


class FactsPlan(NamedTuple):
    """What a task has to know. Columns are known by their places among those that are read."""

    identifying: int
    """So many columns, the first ones, identify a row."""
    tests: tuple[RowTest, ...]
    label: int
    names_classes: bool
    """Whether a label is the name of a class; else it is a number."""
    weight: int | None
    given: int | None
    """The column that names a row's split."""
    together: tuple[int, ...]
    """The columns whose rows are drawn together; without such, each is drawn by itself."""
    seed: int
    ends: tuple[tuple[str, float], ...]
    """The splits that rows are drawn for, and below which share of all, from the first one on."""


def facts_of(rows: pa.RecordBatch, plan: FactsPlan) -> pa.RecordBatch | None:
    """By row, the hashes ``content``, ``draw`` and ``order``, the ``label``, and the split that is ``given``, if any.

    None where a row cannot be used, or might not.
    """
    columns = rows.columns
    if any(fails(columns[test.column], test) is not None for test in plan.tests):
        return None
    label = _class_names(columns[plan.label]) if plan.names_classes else _numbers(columns[plan.label])
    missing = [columns[place] for place in (*plan.together, *([] if plan.given is None else [plan.given]))]
    if label is None or any(column.null_count for column in missing):
        return None
    if plan.weight is not None:
        weights = _numbers(columns[plan.weight])
        if weights is None or pc.any(pc.less(weights, 0.0)).as_py():
            return None
    seeds = [("content", 0), *([] if plan.together else [("split", plan.seed)])]
    content, *draws = hash_rows(columns[: plan.identifying], seeds)
    draw = draws[0] if draws else hash_rows([columns[place] for place in plan.together], [("split", plan.seed)])[0]
    order = hash_rows([pa.array(content)], [("order", plan.seed)])[0]
    facts = {"content": pa.array(content), "draw": pa.array(draw), "order": pa.array(order), "label": label}
    if plan.given is not None:
        facts["given"] = columns[plan.given].dictionary_encode()
    return pa.RecordBatch.from_arrays(list(facts.values()), list(facts))


def numbered_facts(
    facts: pa.RecordBatch, places: NDArray[np.int64], numbers: NDArray[np.int32], plan: FactsPlan
) -> pa.RecordBatch:
    """The facts of rows of which some, at these places, are not the first of those that are equal to them."""
    changed = {}
    for name in ["order"] if plan.together else ["order", "draw"]:
        hashes = facts.column(name).to_numpy().copy()
        own = np.full(len(places), SEED, np.uint64)
        xxhash64_of_numbers(hashes[places], own)
        xxhash64_of_numbers(numbers, own)
        hashes[places] = own.view(np.int64)
        changed[name] = pa.array(hashes)
    names = facts.schema.names
    return pa.RecordBatch.from_arrays([changed.get(name, facts.column(name)) for name in names], names)


def splits_of(facts: pa.RecordBatch, plan: FactsPlan) -> tuple[NDArray[np.intp], list[str]]:
    """The split of each row, as its place in a list of names."""
    names = [name for name, _ in plan.ends] + [_TRAIN]
    drawn = np.searchsorted([end for _, end in plan.ends], shares(facts.column("draw").to_numpy()), "right")
    if plan.given is None:
        return drawn, names
    given = facts.column("given")
    said = given.dictionary.to_pylist()
    names += [name for name in said if name not in names]
    found = np.array([names.index(name) for name in said], np.intp)[given.indices.to_numpy()]
    return np.where(found == names.index(_TRAIN), drawn, found), names


def from_message(message: pa.Scalar) -> pa.RecordBatch:
    """The facts in what :func:`~sparkdl.data.preparing.blocks.to_message` made of them."""
    with pa.ipc.open_stream(message.as_buffer()) as reader:
        return reader.read_next_batch()


def _class_names(column: pa.Array) -> pa.DictionaryArray | None:
    """Labels by the names that Spark gives them; None where one is missing or no whole number."""
    if column.null_count:
        return None
    if pa.types.is_floating(column.type):
        values = column.to_numpy()
        if not (np.abs(values) < _LONGS).all() or (values != np.trunc(values)).any():
            return None
        column = pa.array(values.astype(np.int64))
    encoded = column.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices, encoded.dictionary.cast(pa.string()))


def _numbers(column: pa.Array) -> pa.Array | None:
    """Numbers as doubles; None where one is missing or not finite."""
    if column.null_count:
        return None
    values = column.cast(pa.float64(), safe=False)
    return values if np.isfinite(values.to_numpy()).all() else None
