"""What tasks wrote becomes the table of row groups, in one task more: the driver gets sums, however many there are."""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sparkdl.data.card import LABEL_COLUMN, METADATA_NAME, WEIGHT_COLUMN
from sparkdl.data.card_parts import LabelScale, RowGroupsFile, SparseCounts
from sparkdl.data.named_files import LEVELS
from sparkdl.data.preparing.petastorm import petastorm_metadata
from sparkdl.data.preparing.runs import Runs
from sparkdl.data.row_groups import file_name, write_row_groups_file
from sparkdl.data.sparse_rows import SPARSE_COUNTS
from sparkdl.errors import DataError
from sparkdl.storage import join, write_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["RECORD", "Written", "WrittenSplit", "summed", "summed_up", "sums_of", "to_batch"]

RECORD = (
    "split string, group int, rows bigint, bytes bigint, sha256 string, crc32 bigint, inputs_at bigint, "
    "labels_at bigint, weights_at bigint, unusable bigint, histogram array<bigint>, counts array<bigint>, "
    "largest array<bigint>, "
    "label_mean double, label_deviations double, weight_sum double"
)
"""What a task reports about each file it wrote; the first file's histogram is that of all."""


class WrittenSplit(NamedTuple):
    """What was written of a split."""

    rows: int
    groups: int
    unusable: int
    """Rows with values that are NaN or infinite, as preprocessing may have made them."""
    metadata_sha256: str
    """Of what Petastorm's readers look for."""
    counts: list[int] | None
    """Of sparse rows, as :data:`SPARSE_COUNTS` says."""
    label_scale: tuple[float, float] | None
    """Mean and deviation of labels that are numbers."""
    mean_weight: float | None
    """Of rows that have weights."""

    @property
    def sparse(self) -> SparseCounts | None:
        """The counts as the card has them."""
        return None if self.counts is None else SparseCounts(**dict(zip(SPARSE_COUNTS, self.counts, strict=True)))

    @property
    def scale(self) -> LabelScale | None:
        """The labels' scale as the card has it."""
        return None if self.label_scale is None else LabelScale(mean=self.label_scale[0], std=self.label_scale[1])


class Written(NamedTuple):
    """What was written."""

    row_groups: RowGroupsFile
    splits: dict[str, WrittenSplit]
    mean: tuple[float, ...] | None
    """Of images: per channel, of value / 255 over the training split; of several, one's behind another's."""
    std: tuple[float, ...] | None
    largest: tuple[int, ...] = ()
    """Of each input that has a name: the largest id of all rows, and the length of the longest row."""


def sums_of(table: pa.Table) -> dict[str, float]:
    """What the scale of labels and the mean weight are made from: exact sums, whatever adds up how many at a time."""
    sums: dict[str, float] = {}
    if pa.types.is_float64(table.schema.field(LABEL_COLUMN).type):
        labels = table.column(LABEL_COLUMN).to_numpy()
        mean = math.fsum(labels) / len(labels)
        sums |= {"label_mean": mean, "label_deviations": math.fsum((labels - mean) ** 2)}
    if WEIGHT_COLUMN in table.column_names:
        sums["weight_sum"] = math.fsum(table.column(WEIGHT_COLUMN).to_numpy())
    return sums


def to_batch(records: list[dict[str, Any]]) -> pa.RecordBatch:
    """What a task reports. Runs in a task."""
    found = [(record["split"], record.pop("histogram", None)) for record in records]
    histograms = [histogram for split, histogram in found if split == "train" and histogram]
    if histograms:  # those of single files would be most of what travels
        records[0]["histogram"] = np.sum(histograms, axis=0).tolist()
    return pa.RecordBatch.from_pylist(records, schema=_schema())


def summed_up(records: "DataFrame", folder: str, schema: pa.Schema, runs: Runs) -> Written:
    """Write the table of row groups and what Petastorm's readers look for. Runs on the driver; one task writes.

    ``records`` are those of all files; ``schema`` is theirs. Raises :class:`DataError` when these are not all that were
    to be written, and for a split whose rows all have the weight zero.
    """
    expected = {name: (len(split.rows), int(split.rows.sum())) for name, split in runs.splits.items()}
    (row,) = records.repartition(1).mapInArrow(_summary(folder, schema, expected), "found string").collect()
    found = json.loads(row.found)
    mean, std = _statistics(np.array(found["histogram"])) if found["histogram"] else (None, None)
    splits = {name: WrittenSplit(**split) for name, split in found["splits"].items()}
    return Written(RowGroupsFile(**found["row_groups"]), splits, mean, std, tuple(found["largest"]))


def _summary(
    folder: str, schema: pa.Schema, expected: Mapping[str, tuple[int, int]]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def summary(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        histogram: Any = 0
        kept = [_schema().empty_table().drop_columns(["histogram"])]
        for batch in batches:
            for one in batch.column(batch.schema.get_field_index("histogram")).drop_null():
                histogram = histogram + np.array(one.values)
            kept.append(pa.Table.from_batches([batch]).drop_columns(["histogram"]).cast(kept[0].schema))
        table = pa.concat_tables(kept).sort_by([("split", "ascending"), ("group", "ascending")])
        splits, groups = {}, {}
        for split, wanted in expected.items():
            own = groups[split] = table.filter(pc.equal(table.column("split"), split))
            splits[split] = summed(split, own, wanted)._asdict()
            names = list(map(file_name, range(len(own))))
            splits[split]["metadata_sha256"] = _write_metadata(join(folder, split), names, schema)
        written = write_row_groups_file(folder, groups).model_dump()
        largest = np.array(table.column("largest").drop_null().to_pylist() or [[]]).max(axis=0).astype(int).tolist()
        found = {"row_groups": written, "splits": splits, "histogram": np.asarray(histogram).tolist()}
        found["largest"] = largest
        yield pa.RecordBatch.from_pydict({"found": [json.dumps(found)]})

    return summary


def summed(split: str, files: pa.Table, expected: tuple[int, int]) -> WrittenSplit:
    """What the records of a split add up to. Raises :class:`DataError` for other numbers of them, or of rows."""
    rows = files.column("rows").to_numpy()
    if (len(files), rows.sum()) != expected:
        raise DataError(
            f"the rows changed while they were read ({expected[1]:,} of split {split!r}, then {rows.sum():,}); prepare"
            " from a source that gives the same rows each time"
        )
    counts = files.column("counts")
    return WrittenSplit(
        rows=int(rows.sum()),
        groups=len(files),
        unusable=pc.sum(files.column("unusable")).as_py(),
        metadata_sha256="",
        counts=None if counts.null_count else np.sum(np.array(counts.to_pylist()), axis=0).tolist(),
        label_scale=None if files.column("label_mean").null_count else _label_scale(files, rows),
        mean_weight=None if files.column("weight_sum").null_count else _mean_weight(split, files, int(rows.sum())),
    )


def _label_scale(files: pa.Table, rows: NDArray[np.int64]) -> tuple[float, float]:
    """Mean and deviation of all labels from those of each file (Chan, Golub, LeVeque, 1983), whatever their order."""
    means, total = files.column("label_mean").to_numpy(), int(rows.sum())
    mean = math.fsum(rows * means) / total
    within = math.fsum(files.column("label_deviations").to_numpy())
    between = math.fsum(rows * (means - mean) ** 2)
    return mean, math.sqrt((within + between) / total) or 1.0


def _mean_weight(split: str, files: pa.Table, rows: int) -> float:
    mean = math.fsum(files.column("weight_sum").to_numpy()) / rows
    if not mean:
        raise DataError(f"all rows of the split {split!r} have the weight 0; nothing can be computed from them")
    return mean


def _write_metadata(folder: str, names: list[str], schema: pa.Schema) -> str:
    """Write what stock Petastorm readers look for; returns its SHA-256."""
    content = petastorm_metadata(schema, names)
    write_file(join(folder, METADATA_NAME), content, makes_folder=False)
    return hashlib.sha256(content).hexdigest()


def _schema() -> pa.Schema:
    names = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64()}
    names["array<bigint>"] = pa.list_(pa.int64())
    return pa.schema([(name, names[kind]) for name, kind in (part.split() for part in RECORD.split(", "))])


def _statistics(histogram: NDArray[np.int64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    histograms = histogram.reshape(-1, LEVELS)
    levels = np.arange(LEVELS) / (LEVELS - 1)
    shares = histograms / histograms.sum(axis=1, keepdims=True)
    mean = shares @ levels
    std = np.sqrt(((levels - mean[:, None]) ** 2 * shares).sum(axis=1))
    return tuple(map(float, mean)), tuple(map(float, std))
