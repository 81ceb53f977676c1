"""The row groups of a dataset as columns: a million of them take a hundred megabytes, and as objects a gigabyte.

They are kept in a file beside the card, Parquet with a row for each row group, one split's behind another's. What a row
group's file is called follows from its number, so that such a table cannot point outside the dataset's folder.
"""

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sparkdl.data.card import ROW_GROUPS_NAME, File, RowGroupsFile
from sparkdl.errors import DatasetError
from sparkdl.storage import join, read_file, write_file

__all__ = ["RowGroup", "RowGroups", "file_name", "read_row_groups", "write_row_groups_file"]

_NUMBERS = "rows", "bytes", "crc32", "inputs_at", "labels_at", "weights_at"
_SCHEMA = pa.schema(
    [
        pa.field("split", pa.string(), False),
        *(pa.field(name, pa.int64(), False) for name in _NUMBERS),
        pa.field("sha256", pa.binary(32), False),
    ]
)


@dataclass(frozen=True)
class RowGroup:
    """One Parquet file of a split; it holds exactly one row group. See :class:`~sparkdl.data.card.File`."""

    path: str
    rows: int
    bytes: int
    sha256: str
    crc32: int
    inputs_at: int
    labels_at: int
    weights_at: int = 0


class RowGroups(Sequence[RowGroup]):
    """The row groups of one split, in the order of its rows."""

    def __init__(
        self, folder: str, numbers: Mapping[str, NDArray[np.int64]], sha256: NDArray[np.uint8], names: Sequence[str]
    ) -> None:
        self._folder, self._numbers, self._sha256, self._names = folder, numbers, sha256, names

    @classmethod
    def of_files(cls, folder: str, files: Sequence[File]) -> "RowGroups":
        """Those that a card of an earlier format lists."""
        numbers = {name: np.array([getattr(file, name) for file in files], np.int64) for name in _NUMBERS}
        sha256 = np.frombuffer(bytes.fromhex("".join(file.sha256 for file in files)), np.uint8).reshape(-1, 32)
        return cls(folder, numbers, sha256, [file.path for file in files])

    @property
    def rows(self) -> NDArray[np.int64]:
        """How many rows each one has."""
        return self._numbers["rows"]

    @property
    def bytes(self) -> NDArray[np.int64]:
        """How large each one's file is."""
        return self._numbers["bytes"]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            some = {name: column[number] for name, column in self._numbers.items()}
            return RowGroups(self._folder, some, self._sha256[number], self._names[number])
        numbers = {name: int(column[number]) for name, column in self._numbers.items()}
        path = join(self._folder, self._names[number])
        return RowGroup(path=path, sha256=self._sha256[number].tobytes().hex(), **numbers)

    def __iter__(self) -> Iterator[RowGroup]:
        return (self[number] for number in range(len(self)))


class _Names(Sequence[str]):
    """The names of a split's files, none of which is kept."""

    def __init__(self, split: str, numbers: range) -> None:
        self._split, self._numbers = split, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return _Names(self._split, self._numbers[number])
        return f"{self._split}/{file_name(self._numbers[number])}"


def file_name(number: int) -> str:
    """What the file of a split's row group is called."""
    return f"part-{number:06d}.parquet"


def write_row_groups_file(folder: str, splits: Mapping[str, pa.Table]) -> RowGroupsFile:
    """Write the table of all row groups. Runs anywhere.

    By split, a row for each: ``sha256`` in hexadecimal and the other columns of :class:`RowGroup`, but its path.
    """
    tables = []
    for split, groups in splits.items():
        arrays = [pa.repeat(pa.scalar(split), len(groups))]
        arrays += [groups.column(name).cast(pa.int64()).combine_chunks() for name in _NUMBERS]
        digests = pa.py_buffer(bytes.fromhex("".join(groups.column("sha256").to_pylist())))
        arrays.append(pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), len(groups), [None, digests]))
        tables.append(pa.Table.from_arrays(arrays, schema=_SCHEMA))
    content = pa.BufferOutputStream()
    dictionaries = [name for name in _SCHEMA.names if name not in ("crc32", "sha256")]
    pq.write_table(pa.concat_tables(tables), content, compression="zstd", use_dictionary=dictionaries)
    written = content.getvalue()
    write_file(join(folder, ROW_GROUPS_NAME), written, makes_folder=False)
    return RowGroupsFile(bytes=written.size, sha256=hashlib.sha256(written).hexdigest())


@lru_cache(maxsize=2)  # a process asks for each split of one dataset, many times
def read_row_groups(folder: str, expected: RowGroupsFile) -> dict[str, RowGroups]:
    """The row groups of a dataset by split. Runs anywhere.

    Raises :class:`DatasetError` when their file is missing, is not the one that the card describes, or cannot be that
    of a dataset.
    """
    path = join(folder, ROW_GROUPS_NAME)
    try:
        content = read_file(path)
    except FileNotFoundError:
        raise DatasetError(f"{path} is missing. Restore it, or remove the dataset and prepare it again.") from None
    if hashlib.sha256(content).hexdigest() != expected.sha256:
        raise DatasetError(
            f"{path} was altered: its SHA-256 is not the card's. Restore it, or remove the dataset and prepare again."
        )
    try:
        return _by_split(folder, pq.ParquetFile(io.BytesIO(content)).read())
    except (pa.ArrowException, ValueError) as error:
        raise DatasetError(f"{path} is not a valid table of row groups: {error}. Prepare the dataset again.") from None


def _by_split(folder: str, table: pa.Table) -> dict[str, RowGroups]:
    if [(field.name, field.type) for field in table.schema] != [(field.name, field.type) for field in _SCHEMA]:
        raise ValueError(f"its columns are not {', '.join(_SCHEMA.names)}")
    if any(column.null_count for column in table.columns):
        raise ValueError("it has nulls")
    runs = pc.run_end_encode(table.column("split").combine_chunks())
    names, ends = runs.values.to_pylist(), runs.run_ends.to_pylist()
    if len(set(names)) < len(names):
        raise ValueError("the row groups of a split do not stand together")
    found = {}
    for split, begin, end in zip(names, [0, *ends], ends, strict=False):
        own = table.slice(begin, end - begin)
        numbers = {name: own.column(name).to_numpy() for name in _NUMBERS}
        if min(numbers["rows"].min(), numbers["bytes"].min()) < 1 or min(map(np.min, numbers.values())) < 0:
            raise ValueError(f"a row group of split {split!r} is empty, or lies before its file")
        if np.ptp(numbers["rows"]) > 1:
            smallest, largest = numbers["rows"].min(), numbers["rows"].max()
            raise ValueError(f"row groups must be of equal size, give or take one row; found {smallest} and {largest}")
        digests = own.column("sha256").combine_chunks()
        sha256 = np.frombuffer(digests.buffers()[1], np.uint8)[digests.offset * 32 :].reshape(-1, 32)[: len(own)]
        found[split] = RowGroups(folder, numbers, sha256, _Names(split, range(len(own))))
    return found
