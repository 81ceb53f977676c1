"""The file with the names of very many classes, which is beside the card instead of in it."""

import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sparkdl.data.card import LABELS_NAME, UNSEEN
from sparkdl.data.card_parts import LabelsFile
from sparkdl.data.class_indices import class_indices
from sparkdl.data.file_checks import read_unaltered
from sparkdl.data.parquet_bytes import read_table
from sparkdl.errors import DataError
from sparkdl.storage import join, write_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["index_labels", "read_labels", "write_labels"]

_SCHEMA = pa.schema([pa.field("name", pa.string(), False), pa.field("count", pa.int64(), False)])


def write_labels(labels: "DataFrame", folder: str) -> LabelsFile:
    """Write the distinct values of a column of labels and their counts. Runs on the driver; one task writes.

    Numbers come first, in the order of the nearest whole numbers; all other names follow in the order of their
    characters. Raises :class:`DataError` if there are no labels.
    """
    from pyspark.sql import functions as sf

    (column,) = labels.columns
    path = join(folder, LABELS_NAME)

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        content = pa.BufferOutputStream()
        classes = 0
        with pq.ParquetWriter(content, _SCHEMA, compression="zstd", use_dictionary=False) as writer:
            for batch in batches:
                writer.write_batch(pa.RecordBatch.from_arrays([batch.column(0), batch.column(1)], schema=_SCHEMA))
                classes += len(batch)
        written = content.getvalue()
        write_file(path, written, makes_folder=False)
        digest = hashlib.sha256(written).hexdigest()
        yield pa.RecordBatch.from_pylist([{"classes": classes, "bytes": written.size, "sha256": digest}])

    counted = labels.groupBy(sf.col(column).alias("name")).count()
    number = sf.expr("try_cast(name AS decimal(38, 0))")
    found = (
        counted.repartition(1)
        .sortWithinPartitions(number.asc_nulls_last(), "name")
        .mapInArrow(write, "classes bigint, bytes bigint, sha256 string")
        .first()
    )
    if found is None or not found.classes:
        raise DataError("the rows of the split 'train' have no labels; there is nothing to learn")
    return LabelsFile(**found.asDict())


def read_labels(folder: str, expected: LabelsFile) -> pa.Table:
    """The names and counts of a dataset's classes; the row number is the class index. Runs anywhere.

    Raises :class:`DatasetError` if the file is missing or was altered.
    """
    return read_table(read_unaltered(join(folder, LABELS_NAME), expected.sha256))


def index_labels(labels: pa.Array, folder: str, expected: LabelsFile) -> pa.Array:
    """The class index of each label (int64); -1 for labels that the training split does not have. Runs in a task."""
    return pc.fill_null(class_indices(labels, _names(folder, expected)), UNSEEN)


@lru_cache(maxsize=1)
def _names(folder: str, expected: LabelsFile) -> pa.ChunkedArray:
    return read_labels(folder, expected).column("name").combine_chunks()
