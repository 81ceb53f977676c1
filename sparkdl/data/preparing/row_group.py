"""One row group of whole rows as one file, laid out so that ranks need not decode it. Runs in a task."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sparkdl.data.card import LABEL_COLUMN, WEIGHT_COLUMN, InputSpec
from sparkdl.data.label_spec import LabelSpec
from sparkdl.data.named_files import histogram
from sparkdl.data.plain_pages import plain_pages, write_plain_pages
from sparkdl.data.reading.arrays import decode, decode_labels, to_binary
from sparkdl.data.reading.read import LENGTH_BYTES, view_inputs, view_labels, view_weights

__all__ = ["row_schema", "write_row_group"]


def write_row_group(path: str, table: pa.Table, input: InputSpec, label_names: Sequence[str] = ()) -> dict[str, Any]:
    """Write one row group as one file, and what the card has to know about it. Runs in a task.

    ``table`` has the input column, class indices, numbers, or lists of some of the ``label_names``, and the rows'
    weights where they have such; raises :class:`DataError` for rows of the wrong size.
    """
    values = decode(table.column(input.column), input)
    labels = decode_labels(table.column(LABEL_COLUMN), label_names)
    weights = table.column(WEIGHT_COLUMN).to_numpy() if WEIGHT_COLUMN in table.column_names else None
    label = LabelSpec(labels.dtype.name, labels.shape[1:])  # type: ignore[arg-type]
    schema = row_schema(input, label, weighted=weights is not None)
    arrays = [_to_arrow(values, input), to_binary(labels) if label.shape else pa.array(labels)]
    if weights is not None:
        arrays.append(pa.array(weights))
    written = plain_pages(arrays, schema, statistics=[LABEL_COLUMN])
    return {
        "rows": len(labels),
        **write_plain_pages(path, written),
        "unusable": 0 if input.kind == "image" else int((~np.isfinite(values).all(axis=1)).sum()),
        "histogram": histogram(values) if input.kind == "image" else None,
        **_find_values(written, values, labels, weights, input, label),
    }


def _find_values(
    written: pa.Buffer,
    values: NDArray[np.generic],
    labels: NDArray[Any],
    weights: NDArray[np.float64] | None,
    input: InputSpec,
    label: LabelSpec,
) -> dict[str, int]:
    """Where in the file the inputs, the labels and their weights begin.

    A page holds its levels, then its values (https://parquet.apache.org/docs/file-format/data-pages/). Not compressed,
    PLAIN, and in one page, they end their column, and a reader who knows where they begin has nothing to decode.
    """
    rows = len(values)
    sizes = {
        "inputs_at": rows * (LENGTH_BYTES[input.kind] + input.row_bytes),
        "labels_at": rows * (label.length_bytes + label.row_bytes),
    }
    if weights is not None:
        sizes["weights_at"] = weights.nbytes
    columns = pq.read_metadata(pa.BufferReader(written)).row_group(0)
    chunks = [columns.column(index) for index in range(len(sizes))]
    begins = {
        key: chunk.data_page_offset + chunk.total_compressed_size - size
        for chunk, (key, size) in zip(chunks, sizes.items(), strict=True)
    }
    found = [
        view_inputs(written, begins["inputs_at"], rows, input),
        view_labels(written, begins["labels_at"], rows, label),
    ]
    expected = [values, labels]
    if weights is not None:
        found.append(view_weights(written, begins["weights_at"], rows))
        expected.append(weights)
    if any(ours.tobytes() != theirs.tobytes() for ours, theirs in zip(found, expected, strict=True)):
        raise RuntimeError(f"pyarrow {pa.__version__} lays out pages in a way that sparkdl does not know")
    return {"weights_at": 0} | begins


def row_schema(input: InputSpec, label: LabelSpec, *, weighted: bool) -> pa.Schema:
    """The columns of a file whose rows are whole."""
    fields = [pa.field(input.column, _arrow_type(input), False)]
    fields.append(pa.field(LABEL_COLUMN, pa.binary() if label.shape else pa.from_numpy_dtype(label.dtype), False))
    return pa.schema(fields + ([pa.field(WEIGHT_COLUMN, pa.float64(), False)] if weighted else []))


def _arrow_type(input: InputSpec) -> pa.DataType:
    if input.kind == "image":
        return pa.binary()
    return pa.list_(pa.field("element", pa.float32(), nullable=False))


def _to_arrow(values: NDArray[np.generic], input: InputSpec) -> pa.Array:
    if input.kind == "image":
        return to_binary(values)
    width = values.shape[1]
    offsets = np.arange(0, (len(values) + 1) * width, width, dtype=np.int32)
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.Array.from_buffers(_arrow_type(input), len(values), [None, pa.py_buffer(offsets)], children=[flat])
