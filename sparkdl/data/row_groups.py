"""The row groups of a dataset, stored as columns: a million of them take 100 MB; as objects they would take 1 GB.

They are in a Parquet file beside the card, with one row per row group, split by split. The name of a row group's file
follows from its number, so that such a table cannot refer to files outside the dataset's folder. Only for rows that
stay in place does it contain paths, which are relative to a folder that the card names.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from typing_extensions import override

from sparkdl.data.card import ROW_GROUPS_NAME
from sparkdl.data.card_parts import File, RowGroupsFile
from sparkdl.data.file_checks import read_unaltered
from sparkdl.data.parquet_bytes import read_table
from sparkdl.errors import DatasetError
from sparkdl.storage import hash_file, join, read_file, write_file

__all__ = ["ForeignRowGroup", "RowGroup", "RowGroups", "file_name", "read_row_groups", "write_row_groups_file"]


@dataclass(frozen=True)
class RowGroup:
    """A Parquet file of a split with exactly one row group. See :class:`~sparkdl.data.card_parts.File`."""

    path: str
    rows: int
    bytes: int
    sha256: str
    crc32: int
    inputs_at: int = 0
    labels_at: int = 0
    weights_at: int = 0

    @property
    def span(self) -> tuple[int, int]:
        """The begin and the end of its bytes in the file; the hashes are those of these bytes."""
        return 0, self.bytes

    def hash_again(self) -> str:
        """SHA-256 of the file's current bytes. Raises FileNotFoundError if there is no file."""
        return hash_file(self.path)


@dataclass(frozen=True)
class ForeignRowGroup(RowGroup):
    """The rows of one split in a row group of an existing Parquet file, which stay in place."""

    begin: int = 0
    end: int = 0
    """With ``begin``: the bytes of the file that contain all columns to be read, and those between them."""
    number: int = 0
    """Its number among the row groups of the file."""
    place: int = 0
    """Its number among the row groups of all files, by which rows are drawn for splits."""
    split: str = ""

    @property
    @override
    def span(self) -> tuple[int, int]:
        return self.begin, self.end

    @override
    def hash_again(self) -> str:
        return hashlib.sha256(read_file(self.path, start=self.begin, end=self.end)).hexdigest()


class _Format(NamedTuple):
    """The format of the table of row groups."""

    numbers: tuple[str, ...]
    has_paths: bool

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(
            [
                pa.field("split", pa.string(), False),
                *(pa.field(name, pa.int64(), False) for name in self.numbers),
                pa.field("sha256", pa.binary(32), False),
                *([pa.field("path", pa.string(), False)] if self.has_paths else []),
            ]
        )


_OWN = _Format(("rows", "bytes", "crc32", "inputs_at", "labels_at", "weights_at"), has_paths=False)
_FOREIGN = _Format(("rows", "bytes", "crc32", "begin", "end", "number", "place"), has_paths=True)
_COMPRESSES_WELL = {"split", "rows", "bytes", "inputs_at", "labels_at", "weights_at", "path"}


class RowGroups(Sequence[RowGroup]):
    """The row groups of one split, in the order of its rows."""

    def __init__(
        self,
        folder: str,
        numbers: Mapping[str, NDArray[np.int64]],
        sha256: NDArray[np.uint8],
        names: Sequence[str],
        make: Callable[..., RowGroup] = RowGroup,
    ) -> None:
        self._folder, self._numbers, self._sha256, self._names, self._make = folder, numbers, sha256, names, make

    @classmethod
    def of_files(cls, folder: str, files: Sequence[File]) -> "RowGroups":
        """The row groups that a card of an earlier format lists."""
        numbers = {name: np.array([getattr(file, name) for file in files], np.int64) for name in _OWN.numbers}
        sha256 = np.frombuffer(bytes.fromhex("".join(file.sha256 for file in files)), np.uint8).reshape(-1, 32)
        return cls(folder, numbers, sha256, [file.path for file in files])

    @classmethod
    def laid_together(cls, splits: "Sequence[RowGroups]") -> "RowGroups":
        """The row groups of several splits of one dataset, split by split."""
        first, *others = splits
        if not others:
            return first
        numbers = {name: np.concatenate([each._numbers[name] for each in splits]) for name in first._numbers}
        names = [name for each in splits for name in each._names]
        return cls(first._folder, numbers, np.concatenate([each._sha256 for each in splits]), names, first._make)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of each row group."""
        return self._numbers["rows"]

    @property
    def bytes(self) -> NDArray[np.int64]:
        """The size of each row group's file."""
        return self._numbers["bytes"]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            some = {name: column[number] for name, column in self._numbers.items()}
            return RowGroups(self._folder, some, self._sha256[number], self._names[number], self._make)
        numbers = {name: int(column[number]) for name, column in self._numbers.items()}
        path = join(self._folder, self._names[number])
        return self._make(path=path, sha256=self._sha256[number].tobytes().hex(), **numbers)

    def __iter__(self) -> Iterator[RowGroup]:
        return (self[number] for number in range(len(self)))


class _Paths(Sequence[str]):
    """The paths of existing files, each of which has many row groups, kept by Arrow."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, number: Any) -> Any:
        return _Paths(self._column[number]) if isinstance(number, slice) else self._column[int(number)].as_py()


class _Names(Sequence[str]):
    """The names of a split's files, computed when they are needed."""

    def __init__(self, split: str, numbers: range) -> None:
        self._split, self._numbers = split, numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return _Names(self._split, self._numbers[number])
        return f"{self._split}/{file_name(self._numbers[number])}"


def file_name(number: int) -> str:
    """The name of the file of a split's row group."""
    return f"part-{number:06d}.parquet"


def write_row_groups_file(folder: str, splits: Mapping[str, pa.Table]) -> RowGroupsFile:
    """Write the table of all row groups. Runs anywhere.

    ``splits`` has a table per split, with a row per row group: ``sha256`` in hexadecimal, and the other attributes of
    :class:`RowGroup` except its path, or those of :class:`ForeignRowGroup` with its path.
    """
    tables = []
    form = _FOREIGN if any("path" in groups.column_names for groups in splits.values()) else _OWN
    for split, groups in splits.items():
        arrays = [pa.repeat(pa.scalar(split), len(groups))]
        arrays += [groups.column(name).cast(pa.int64()).combine_chunks() for name in form.numbers]
        digests = pa.py_buffer(bytes.fromhex("".join(groups.column("sha256").to_pylist())))
        arrays.append(pa.FixedSizeBinaryArray.from_buffers(pa.binary(32), len(groups), [None, digests]))
        arrays += [groups.column("path").combine_chunks()] if form.has_paths else []
        tables.append(pa.Table.from_arrays(arrays, schema=form.schema))
    content = pa.BufferOutputStream()
    dictionaries = [name for name in form.schema.names if name in _COMPRESSES_WELL]
    pq.write_table(pa.concat_tables(tables), content, compression="zstd", use_dictionary=dictionaries)
    written = content.getvalue()
    write_file(join(folder, ROW_GROUPS_NAME), written, makes_folder=False)
    return RowGroupsFile(bytes=written.size, sha256=hashlib.sha256(written).hexdigest())


@lru_cache(maxsize=2)  # a process calls this often, for each split of the same dataset
def read_row_groups(folder: str, expected: RowGroupsFile, in_place: str | None = None) -> dict[str, RowGroups]:
    """The row groups of a dataset by split. Runs anywhere. ``in_place`` is the folder of rows that stay in place.

    Raises :class:`DatasetError` if their file is missing, was altered, or is not valid.
    """
    path = join(folder, ROW_GROUPS_NAME)
    content = read_unaltered(path, expected.sha256)
    try:
        return _by_split(folder, read_table(content), in_place)
    except (pa.ArrowException, ValueError) as error:
        raise DatasetError(f"{path} is not a valid table of row groups: {error}. Prepare the dataset again.") from None


def _by_split(folder: str, table: pa.Table, in_place: str | None) -> dict[str, RowGroups]:
    form = _OWN if in_place is None else _FOREIGN
    if [(field.name, field.type) for field in table.schema] != [(field.name, field.type) for field in form.schema]:
        raise ValueError(f"its columns are not {', '.join(form.schema.names)}")
    if any(column.null_count for column in table.columns):
        raise ValueError("it has nulls")
    runs = pc.run_end_encode(table.column("split").combine_chunks())
    names, ends = runs.values.to_pylist(), runs.run_ends.to_pylist()
    if len(set(names)) < len(names):
        raise ValueError("the row groups of a split are not consecutive")
    found = {}
    for split, begin, end in zip(names, [0, *ends], ends, strict=False):
        own = table.slice(begin, end - begin)
        numbers = {name: own.column(name).to_numpy() for name in form.numbers}
        if min(numbers["rows"].min(), numbers["bytes"].min()) < 1 or min(map(np.min, numbers.values())) < 0:
            raise ValueError(f"a row group of split {split!r} is empty, or has a negative offset")
        if in_place is None and np.ptp(numbers["rows"]) > 1:
            smallest, largest = numbers["rows"].min(), numbers["rows"].max()
            raise ValueError(f"row groups must be of equal size, give or take one row; found {smallest} and {largest}")
        digests = own.column("sha256").combine_chunks()
        sha256 = np.frombuffer(digests.buffers()[1], np.uint8)[digests.offset * 32 :].reshape(-1, 32)[: len(own)]
        if in_place is None:
            found[split] = RowGroups(folder, numbers, sha256, _Names(split, range(len(own))))
        else:
            if any({"", "..", "."} & {*path.split("/")} for path in pc.unique(own.column("path")).to_pylist()):
                raise ValueError(f"a row group of split {split!r} is outside of {in_place}")
            make = partial(ForeignRowGroup, split=split)
            found[split] = RowGroups(in_place, numbers, sha256, _Paths(own.column("path")), make)
    return found
