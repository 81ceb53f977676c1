"""Sparse rows, of which only nonzero values are stored: from Spark's vectors to arrays and to files."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.data.card import LABEL_COLUMN, WEIGHT_COLUMN, InputSpec
from sparkdl.data.card_parts import LabelsFile
from sparkdl.data.labels import index_labels
from sparkdl.data.parquet_bytes import read_table
from sparkdl.data.plain_pages import plain_pages, write_plain_pages
from sparkdl.data.query_rows import joined
from sparkdl.data.reading.arrays import decode
from sparkdl.errors import DataError

__all__ = [
    "COLUMNS",
    "SPARSE_COUNTS",
    "Rows",
    "decode_sparse",
    "read_rows",
    "read_weights",
    "sparse_schema",
    "write_sparse_row_group",
]

COLUMNS: dict[str, type[np.generic]] = {"indices": np.int32, "values": np.float32, "labels": np.int64}
"""The columns of a sparse dataset. Each value is binary: numbers of this type, concatenated as little-endian bytes. A
numeric label is stored as the bits of a float64.

Lists would be the more natural format, but stock Petastorm cannot read lists of different lengths, and reading them
from Parquet takes twice as long.
"""
SPARSE_COUNTS = "values", "labels", "unseen", "empty"
"""The counts of each file, in this order; see :class:`sparkdl.data.card_parts.SparseCounts`."""


class Rows(NamedTuple):
    """Sparse rows. Row i has the features from ``offsets[i]`` to ``offsets[i + 1]``; labels likewise."""

    indices: NDArray[np.int32]
    values: NDArray[np.float32]
    offsets: NDArray[np.int64]
    labels: NDArray[np.int64]
    label_offsets: NDArray[np.int64]

    def take(self, places: NDArray[np.int64]) -> "Rows":
        """The rows at these positions, in this order."""
        found, offsets = _positions(self.offsets, places)
        found_labels, label_offsets = _positions(self.label_offsets, places)
        return Rows(self.indices[found], self.values[found], offsets, self.labels[found_labels], label_offsets)

    def part(self, start: int, stop: int) -> "Rows":
        """Rows ``start`` to ``stop``, as views."""
        features = slice(self.offsets[start], self.offsets[stop])
        labels = slice(self.label_offsets[start], self.label_offsets[stop])
        return Rows(
            self.indices[features],
            self.values[features],
            self.offsets[start : stop + 1] - self.offsets[start],
            self.labels[labels],
            self.label_offsets[start : stop + 1] - self.label_offsets[start],
        )

    @staticmethod
    def join(parts: "Sequence[Rows]") -> "Rows":
        """The rows of all parts, in order."""
        if len(parts) == 1:
            return parts[0]
        return Rows(
            np.concatenate([part.indices for part in parts]),
            np.concatenate([part.values for part in parts]),
            _joined_offsets([part.offsets for part in parts]),
            np.concatenate([part.labels for part in parts]),
            _joined_offsets([part.label_offsets for part in parts]),
        )

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.offsets) - 1


def decode_sparse(
    column: pa.Array | pa.ChunkedArray, input: InputSpec
) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    """The (indices, values, offsets) of the nonzero elements of Spark ML vectors. Runs anywhere.

    ``column`` is the result of :func:`sparkdl.data.apply_preprocessing` for sparse inputs: structs of ``type``,
    ``size``, ``indices`` and ``values``; ``indices`` is null if Spark has stored a dense vector. Raises
    :class:`DataError`, with their number, if rows are null or vectors are not ``input.shape`` wide.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if column.null_count:
        raise DataError(f"column {input.column!r} has {column.null_count} null rows; fill or drop them")
    given, whole = column.field("values"), column.field("type").to_numpy(zero_copy_only=False) == 1
    lengths = pc.list_value_length(given).to_numpy(zero_copy_only=False).astype(np.int64)
    values = given.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    offsets = _offsets(lengths)
    sizes = np.where(whole, lengths, pc.fill_null(column.field("size"), 0).to_numpy(zero_copy_only=False))
    wrong = int(np.count_nonzero(sizes != input.shape[0]))
    if wrong:
        raise DataError(
            f"column {input.column!r}: {wrong} rows have {sizes[sizes != input.shape[0]][0]} features instead of "
            f"{input.shape[0]}; give every row that width"
        )
    listed = column.field("indices").flatten().to_numpy(zero_copy_only=False)
    if whole.any():
        indices = (np.arange(len(values)) - np.repeat(offsets[:-1], lengths)).astype(np.int32)
        indices[np.repeat(~whole, lengths)] = listed
    else:
        indices = listed
    kept = values != 0
    if not kept.all():
        offsets = _offsets(kept)[offsets]
        indices, values = indices[kept], values[kept]
    if len(indices) and not 0 <= indices.min() <= indices.max() < input.shape[0]:
        raise DataError(f"column {input.column!r} has feature indices outside of 0 to {input.shape[0] - 1}")
    return indices, values, offsets


def sparse_schema(weighted: bool = False) -> pa.Schema:
    """The columns of a file."""
    fields = [pa.field(name, pa.binary(), nullable=False) for name in COLUMNS]
    return pa.schema(fields + ([pa.field(WEIGHT_COLUMN, pa.float64(), nullable=False)] if weighted else []))


def write_sparse_row_group(
    path: str, table: pa.Table, input: InputSpec, labels: LabelsFile | None, folder: str
) -> dict[str, Any]:
    """Write one row group as one file, and return its entry for the card. Runs in a task.

    ``table`` has the vectors, and one class index or number per row; or, with ``labels``, the file of all labels in
    ``folder``, a list of label names per row. For ranking, a row is a group: it has a list of vectors and a list of
    numbers (:mod:`sparkdl.data.query_rows`).
    """
    column, given = table.column(input.column), table.column(LABEL_COLUMN).combine_chunks()
    in_lists = pa.types.is_list(given.type)
    lengths = pc.list_value_length(given).to_numpy(zero_copy_only=False) if in_lists else np.ones(len(given), np.int64)
    label_offsets = _offsets(lengths)
    if labels is None and in_lists:
        column = column.combine_chunks().flatten()
    indices, values, offsets = (decode_sparse if input.kind == "sparse" else _not_zero)(column, input)
    not_finite = np.flatnonzero(~np.isfinite(values))
    unusable = len(np.unique(np.searchsorted(offsets, not_finite, side="right")))
    if labels is not None:
        classes = index_labels(given.flatten(), folder, labels).to_numpy()
    elif in_lists:
        classes = given.flatten().to_numpy().view(np.int64)
        indices, offsets = joined(indices, offsets, label_offsets, input.shape[0])
    else:
        classes = given.to_numpy().view(np.int64)
    weights = [table.column(WEIGHT_COLUMN)] if WEIGHT_COLUMN in table.column_names else []
    arrays = [_to_binary(indices, offsets), _to_binary(values, offsets), _to_binary(classes, label_offsets)]
    content = plain_pages([*arrays, *weights], sparse_schema(bool(weights)))
    return {
        "rows": len(table),
        **write_plain_pages(path, content),
        "inputs_at": 0,  # sparse values are not at fixed offsets
        "labels_at": 0,
        "weights_at": 0,
        "unusable": unusable,
        "counts": [
            len(values),
            len(classes),
            0 if labels is None else int((classes < 0).sum()),
            int((np.diff(offsets) == 0).sum()),
        ],
    }


def read_rows(content: Any) -> Rows:
    """The rows in a file's bytes. Runs anywhere."""
    table = read_table(content, list(COLUMNS))
    arrays = [_from_binary(table.column(name), kind) for name, kind in COLUMNS.items()]
    (indices, offsets), (values, _), (labels, label_offsets) = arrays
    return Rows(indices, values, offsets, labels, label_offsets)


def read_weights(content: Any) -> NDArray[np.float64]:
    """The weights of the rows in a file's bytes. Runs anywhere."""
    table = read_table(content, [WEIGHT_COLUMN])
    weights: NDArray[np.float64] = table.column(WEIGHT_COLUMN).to_numpy()
    return weights


def _not_zero(column: pa.Array, input: InputSpec) -> tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.int64]]:
    """The result of :func:`decode_sparse` for lists of numbers."""
    rows = decode(column, input)
    row, indices = np.nonzero(rows)
    return indices.astype(np.int32), rows[row, indices], _offsets(np.bincount(row, minlength=len(rows)))


def _to_binary(numbers: NDArray[Any], offsets: NDArray[np.int64]) -> pa.Array:
    """One binary value per row: the bytes of its numbers."""
    begins = (offsets * numbers.itemsize).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(begins), pa.py_buffer(numbers)])


def _from_binary(column: pa.ChunkedArray, kind: type[np.generic]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The numbers of all rows, and the offset at which each row begins."""
    rows = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    _, begins, content = rows.buffers()
    offsets = np.frombuffer(begins, np.int32, len(rows) + 1).astype(np.int64) // np.dtype(kind).itemsize
    return np.frombuffer(content, kind, offsets[-1]), offsets


def _offsets(lengths: NDArray[Any]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _joined_offsets(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return _offsets(np.concatenate([np.diff(part) for part in parts]))


def _positions(offsets: NDArray[np.int64], places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The positions of the content of some rows, and the offsets after it has been concatenated."""
    begins = offsets[places]
    lengths = offsets[places + 1] - begins
    taken = _offsets(lengths)
    return np.arange(taken[-1]) + np.repeat(begins - taken[:-1], lengths), taken
