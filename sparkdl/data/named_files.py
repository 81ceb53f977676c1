"""The files of rows with named inputs: one Parquet file per row group, with one column per input.

Inputs of a fixed size are stored contiguously, at offsets that follow from the file's footer, so that ranks need not
decode them. Inputs of variable size are lists, which ranks decode.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sparkdl.data.card import LABEL_COLUMN, WEIGHT_COLUMN
from sparkdl.data.label_spec import LabelSpec
from sparkdl.data.plain_pages import plain_pages, write_plain_pages
from sparkdl.data.ragged import Ragged
from sparkdl.data.reading.arrays import decode_labels, to_binary
from sparkdl.inputs.spec import InputSpec
from sparkdl.preprocessing.input_rows import FEATURE, numbers_of

__all__ = [
    "LEVELS",
    "NamedRows",
    "Rowwise",
    "histogram",
    "input_values",
    "named_schema",
    "no_rows",
    "read_named_rows",
    "write_named_row_group",
]

Rowwise = NDArray[Any] | Ragged
"""The values of one input: an array of shape (n, ...), or rows of different lengths."""
LEVELS = 256
"""The number of values of a uint8."""


class NamedRows(NamedTuple):
    """Some rows of a file."""

    inputs: dict[str, Rowwise]
    labels: NDArray[Any]
    weights: NDArray[np.float64] | None


def input_values(values: pa.Array, spec: InputSpec) -> Rowwise:
    """The numbers in an input's binary values, which :mod:`sparkdl.preprocessing.input_rows` makes. Runs anywhere."""
    numbers, offsets = numbers_of(values, _stored(spec))
    if _is_list(spec):
        return Ragged(numbers, offsets)
    return numbers.reshape(len(values), *spec.shape)


def no_rows(spec: InputSpec) -> Rowwise:
    """The values of an input for zero rows."""
    return Ragged.empty(_stored(spec)) if _is_list(spec) else np.empty((0, *spec.shape), spec.dtype)


def named_schema(specs: Mapping[str, InputSpec], label: LabelSpec, *, weighted: bool) -> pa.Schema:
    """The columns of a file."""
    fields = [pa.field(name, _arrow_type(spec), False) for name, spec in specs.items()]
    if label.stored:
        fields.append(pa.field(LABEL_COLUMN, pa.binary() if label.shape else pa.from_numpy_dtype(label.dtype), False))
    return pa.schema(fields + ([pa.field(WEIGHT_COLUMN, pa.float64(), False)] if weighted else []))


def write_named_row_group(
    path: str,
    table: pa.Table,
    column: str,
    specs: Mapping[str, InputSpec],
    label_names: Sequence[str] = (),
    *,
    has_labels: bool = True,
) -> dict[str, Any]:
    """Write one row group as one file, and return its entry for the card. Runs in a task.

    ``table`` has the structs of inputs in ``column``; labels, which are class indices, numbers, or lists of some of the
    ``label_names``; and weights, if rows have them. Without ``has_labels``, the file gets no labels.
    """
    structs = table.column(column).combine_chunks()
    structs = structs.chunk(0) if isinstance(structs, pa.ChunkedArray) else structs
    inputs = {name: input_values(structs.field(name), spec) for name, spec in specs.items()}
    labels = decode_labels(table.column(LABEL_COLUMN), label_names)
    weights = table.column(WEIGHT_COLUMN).to_numpy() if WEIGHT_COLUMN in table.column_names else None
    label = LabelSpec(labels.dtype.name, labels.shape[1:], has_labels)  # type: ignore[arg-type]
    schema = named_schema(specs, label, weighted=weights is not None)
    arrays = [_to_arrow(values, specs[name]) for name, values in inputs.items()]
    if has_labels:
        arrays.append(to_binary(labels) if label.shape else pa.array(labels))
    if weights is not None:
        arrays.append(pa.array(weights))
    written = plain_pages(arrays, schema, statistics=[LABEL_COLUMN] if has_labels else [])
    again = read_named_rows(written, specs, label, weighted=weights is not None)
    if not _alike(NamedRows(inputs, labels, weights), again):
        raise RuntimeError(f"pyarrow {pa.__version__} writes Parquet pages with a layout that sparkdl does not support")
    wrong = structs.field(structs.type.num_fields - 1).to_numpy()
    images = [values for name, values in inputs.items() if specs[name].kind == "image"]
    return {
        "rows": len(labels),
        **write_plain_pages(path, written),
        "inputs_at": 0,
        "labels_at": 0,
        "weights_at": 0,
        "unusable": int(np.count_nonzero(wrong)),
        "histogram": [count for values in images for count in histogram(np.asarray(values))] or None,
        "largest": [number for name, values in inputs.items() for number in _largest(values, specs[name])],
    }


def histogram(images: NDArray[np.generic]) -> list[int]:
    """How often each value occurs, per channel. Such counts are exact, in whatever order they are added up."""
    channels = images.shape[-1]
    return [
        int(count)
        for channel in range(channels)
        for count in np.bincount(images[..., channel].reshape(-1), minlength=LEVELS)
    ]


def read_named_rows(
    content: Any, specs: Mapping[str, InputSpec], label: LabelSpec, *, weighted: bool, rows: slice = slice(None)
) -> NamedRows:
    """Some rows from a file's bytes. Inputs of a fixed size are views, not copies. Runs anywhere."""
    source = pa.BufferReader(pa.py_buffer(content))
    file = pq.ParquetFile(source)
    columns, count = file.metadata.row_group(0), file.metadata.num_rows
    lists = [name for name, spec in specs.items() if _is_list(spec)]
    table = file.read_row_group(0, columns=lists, use_threads=False) if lists else None
    ends = {}
    for index in range(columns.num_columns):
        chunk = columns.column(index)
        ends[chunk.path_in_schema.partition(".")[0]] = chunk.data_page_offset + chunk.total_compressed_size

    def at_end(name: str, length: int, width: int) -> NDArray[np.uint8]:
        """The values at the end of a page, after its levels: ``width`` bytes per row, after ``length`` bytes."""
        size = count * (length + width)
        records = np.frombuffer(content, np.uint8, size, ends[name] - size).reshape(count, -1)
        return records[rows, length:]

    inputs: dict[str, Rowwise] = {}
    for name, spec in specs.items():
        if table is not None and _is_list(spec):
            inputs[name] = _ragged(table.column(name), spec).take(rows)
        else:
            found = at_end(name, 4 if spec.kind == "image" else 0, spec.row_bytes)
            inputs[name] = found.view(spec.dtype).reshape(len(found), *spec.shape)
    if label.stored:
        labels = at_end(LABEL_COLUMN, label.length_bytes, label.row_bytes).view(label.dtype)
    else:
        labels = np.zeros(len(range(count)[rows]), label.dtype)
    weights = at_end(WEIGHT_COLUMN, 0, 8).view(np.float64)[:, 0] if weighted else None
    return NamedRows(inputs, labels.reshape(len(labels), *label.shape), weights)


def _is_list(spec: InputSpec) -> bool:
    return spec.is_ragged or spec.kind == "sparse"


def _stored(spec: InputSpec) -> "np.dtype[Any]":
    return FEATURE if spec.kind == "sparse" else np.dtype(spec.dtype)


def _arrow_type(spec: InputSpec) -> pa.DataType:
    if spec.kind == "image":
        return pa.binary()
    if spec.kind == "sparse":
        element: pa.DataType = pa.struct([pa.field("index", pa.int32(), False), pa.field("value", pa.float32(), False)])
    else:
        element = pa.int32() if spec.dtype == "int32" else pa.float32()
    return pa.list_(pa.field("element", element, nullable=False))


def _to_arrow(values: Rowwise, spec: InputSpec) -> pa.Array:
    if spec.kind == "image":
        return to_binary(np.asarray(values))
    if isinstance(values, Ragged):
        numbers, offsets = values.values, values.offsets
    else:
        numbers, offsets = values.reshape(-1), np.arange(len(values) + 1) * values.shape[1]
    if spec.kind == "sparse":
        parts = [pa.array(np.ascontiguousarray(numbers[field])) for field in ("index", "value")]
        flat = pa.StructArray.from_arrays(parts, fields=list(_arrow_type(spec).value_type))
    else:
        flat = pa.array(np.ascontiguousarray(numbers))
    begins = pa.py_buffer(np.ascontiguousarray(offsets, np.int32))
    return pa.Array.from_buffers(_arrow_type(spec), len(offsets) - 1, [None, begins], children=[flat])


def _ragged(column: pa.ChunkedArray, spec: InputSpec) -> Ragged:
    lists = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    offsets = lists.offsets.to_numpy().astype(np.int64)
    numbers = lists.values.slice(offsets[0], offsets[-1] - offsets[0])
    if spec.kind != "sparse":
        return Ragged(numbers.to_numpy(), offsets - offsets[0])
    features = np.empty(len(numbers), FEATURE)
    for field in ("index", "value"):
        features[field] = numbers.field(field).to_numpy()
    return Ragged(features, offsets - offsets[0])


def _largest(values: Rowwise, spec: InputSpec) -> tuple[int, int]:
    """The largest id of some rows, and the length of the longest."""
    longest = int(np.diff(values.offsets).max(initial=0)) if isinstance(values, Ragged) else 0
    numbers = values.values if isinstance(values, Ragged) else values
    return (int(numbers.max(initial=0)) if spec.dtype == "int32" else 0), longest


def _alike(ours: NamedRows, theirs: NamedRows) -> bool:
    pairs = [(each, theirs.inputs[name]) for name, each in ours.inputs.items()]
    pairs += [(ours.labels, theirs.labels)]
    pairs += [] if ours.weights is None or theirs.weights is None else [(ours.weights, theirs.weights)]
    return all(one.tobytes() == other.tobytes() for one, other in pairs)
