"""Examines rows that stay in place in one pass, and records them for the card."""

import hashlib
import json
import logging
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.data.card import LABEL_COLUMN, WEIGHT_COLUMN, InputSpec
from sparkdl.data.card_parts import RowGroupsFile
from sparkdl.data.in_place.drawing import rows_of, split_names
from sparkdl.data.in_place.examples import Examples
from sparkdl.data.in_place.parquet_columns import decode_columns
from sparkdl.data.in_place.parquet_files import LARGEST_GROUP_BYTES, NEEDS_COPY, FoundRows, groups_in
from sparkdl.data.preparing.examine import check_sizes
from sparkdl.data.preparing.look import Look
from sparkdl.data.preparing.written import Written, WrittenSplit, summed, sums_of
from sparkdl.data.row_groups import write_row_groups_file
from sparkdl.errors import DataError
from sparkdl.preprocessing import FittedPipeline
from sparkdl.storage import join, read_file

__all__ = ["record_row_groups"]

_RECORD = (
    "split string, path string, number bigint, place bigint, rows bigint, bytes bigint, sha256 string, crc32 bigint, "
    "begin bigint, end bigint, unusable bigint, label_mean double, label_deviations double, weight_sum double, "
    "seconds double"
)
"""The columns that a task returns for the rows of one split in a row group; ``seconds`` is the CPU time of decoding."""
_KINDS = {"string": pa.string(), "bigint": pa.int64(), "double": pa.float64()}
_RECORD_HERE = pa.schema([(name, _KINDS[kind]) for name, kind in map(str.split, _RECORD.split(", "))])

_log = logging.getLogger(__name__)


def record_row_groups(
    found: FoundRows, look: Look, pipeline: FittedPipeline | None, spec: InputSpec, folder: str
) -> Written:
    """Write the table of row groups to ``folder``. Runs on the driver; tasks read all rows once, and make inputs.

    ``look`` is the examination of the rows, ``pipeline`` makes inputs from them. Raises :class:`DataError` for tasks
    other than classification and regression, and if the number of rows has changed since they were counted.
    """
    settings, split_rows = found.settings, look.findings.split_rows
    if look.task not in ("classification", "regression"):
        raise DataError(
            f"`in_place` is only for classification and regression, but {settings.label!r} is for {look.task};"
            f" {NEEDS_COPY}"
        )
    check_sizes(split_rows, settings)
    examples = Examples(
        raw_columns=look.inputs.raw_columns,
        pipeline=pipeline,
        output=spec.column,
        width=spec.shape[0],
        label=settings.label,
        label_names=look.findings.label_names,
        weight=settings.weight,
    )
    records = found.groups.mapInArrow(_recorder(found, examples), _RECORD)
    (row,) = records.repartition(1).mapInArrow(_summary(folder, split_rows), "found string").collect()
    summary = json.loads(row.found)
    splits = {name: WrittenSplit(**split) for name, split in summary["splits"].items()}
    _log.info(
        "rows stay in %s files below %s; a rank decodes up to %s of them per second on each of two threads, in every"
        " epoch: if that is too slow, `in_place: false` makes a copy that needs no decoding",
        f"{len(found.paths):,}",
        found.folder,
        f"{sum(split_rows.values()) / summary['seconds']:,.0f}",
    )
    return Written(RowGroupsFile(**summary["row_groups"]), splits, None, None)


def _recorder(found: FoundRows, examples: Examples) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    folder, paths = found.folder, found.paths
    fractions, seed = dict(found.settings.split.fractions), found.settings.seed

    def record(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in groups_in(batches):
            group = each.at(join(folder, paths[each.file]))
            if 4 * examples.width * group.rows > LARGEST_GROUP_BYTES:
                raise DataError(
                    f"row group {group.number} of {group.path} has {group.rows:,} rows of {examples.width:,} numbers,"
                    f" more than the {LARGEST_GROUP_BYTES >> 20} MiB that ranks can read at a time; {NEEDS_COPY}"
                )
            content = read_file(group.path, start=group.begin, end=group.end)
            same: dict[str, Any] = {"path": paths[each.file], "crc32": zlib.crc32(content)}
            same["sha256"] = hashlib.sha256(content).hexdigest()
            same |= {name: getattr(group, name) for name in ("number", "place", "bytes", "begin", "end")}
            began = time.process_time()
            table = decode_columns(group, examples.columns, content)
            inputs = examples.inputs(table)
            made = {LABEL_COLUMN: examples.labels(table), WEIGHT_COLUMN: examples.weights(table)}
            seconds = time.process_time() - began
            rows = pa.table({name: values for name, values in made.items() if values is not None})
            usable = np.isfinite(inputs).all(axis=1)
            records = []
            for split in split_names(fractions):
                own = rows_of(split, group.place, group.rows, fractions=fractions, seed=seed)
                if len(own):
                    unusable = int(np.count_nonzero(~usable[own]))
                    sums = sums_of(rows.take(pa.array(own)))
                    records.append({**same, "split": split, "rows": len(own), "unusable": unusable, **sums})
            records[0]["seconds"] = seconds
            yield pa.RecordBatch.from_pylist(records, schema=_RECORD_HERE)

    return record


def _summary(
    folder: str, split_rows: Mapping[str, int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def summary(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = [_RECORD_HERE.empty_table(), *(pa.Table.from_batches([batch]).cast(_RECORD_HERE) for batch in batches)]
        table = pa.concat_tables(tables).sort_by([("split", "ascending"), ("place", "ascending")])
        table = table.append_column("counts", pa.nulls(len(table), pa.list_(pa.int64())))
        groups = {split: table.filter(pc.equal(table.column("split"), split)) for split in split_rows}
        found = {
            "splits": {name: summed(name, own, (len(own), split_rows[name]))._asdict() for name, own in groups.items()},
            "row_groups": write_row_groups_file(folder, groups).model_dump(),
            "seconds": pc.sum(table.column("seconds")).as_py(),
        }
        yield pa.RecordBatch.from_pydict({"found": [json.dumps(found)]})

    return summary
