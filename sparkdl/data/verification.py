"""Checks that the files of a dataset are those that were written."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sparkdl.data.card import LABELS_NAME, METADATA_NAME, ROW_GROUPS_NAME
from sparkdl.data.file_checks import REPAIR, altered, missing
from sparkdl.data.labels import read_labels
from sparkdl.data.row_groups import RowGroup, RowGroups
from sparkdl.errors import DatasetError
from sparkdl.sessions import default_parallelism
from sparkdl.storage import exists, file_size, hash_file, hash_folder, join, list_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sparkdl.data.dataset import Dataset

__all__ = ["check_sizes", "verify"]

_LISTED_FILES = 10_000
"""If a split has more files, only some are checked on opening: an object store takes minutes to list a million."""
_SAMPLED_FILES = 64
_HASHED_AT_ONCE = 1024


def check_sizes(dataset: "Dataset") -> None:
    """Compare the sizes of all files, and the content of the preprocessing, with the card. Runs anywhere.

    If a split has very many files, only some are checked. Raises :class:`DatasetError` if one is missing or truncated.
    """
    for name, file in {LABELS_NAME: dataset.card.labels, ROW_GROUPS_NAME: dataset.card.row_groups}.items():
        if file is not None:
            _check_size(join(dataset.path, name), file.bytes, file_size(join(dataset.path, name)))
    _check_preprocessing(dataset)
    for split in dataset.splits:
        _check_files(dataset, split)


def verify(dataset: "Dataset", spark: "SparkSession | None") -> None:
    """Compare the SHA-256 of every file with the card. Runs on the driver; with ``spark``, hashes in tasks.

    Raises :class:`DatasetError` with the first file that is missing, truncated or altered.
    """
    _check_preprocessing(dataset)
    _check_metadata(dataset)
    if dataset.card.labels:
        read_labels(dataset.path, dataset.card.labels)
    path = join(dataset.path, ROW_GROUPS_NAME)
    if dataset.card.row_groups and hash_file(path) != dataset.card.row_groups.sha256:
        raise DatasetError(altered(path))
    for split in dataset.splits:
        problem = (
            _first_problem(dataset.row_groups(split)) if spark is None else _problem_in_tasks(dataset, spark, split)
        )
        if problem:
            raise DatasetError(problem)


def _check_files(dataset: "Dataset", split: str) -> None:
    """Compare the sizes of a split's files with the card's."""
    groups = dataset.row_groups(split)
    if dataset.card.in_place is None and len(groups) <= _LISTED_FILES:
        sizes = _sizes(join(dataset.path, split))
        found: Iterable[tuple[RowGroup, int | None]] = (
            (group, sizes.get(group.path.rpartition("/")[2])) for group in groups
        )
    else:
        sample = [groups[number] for number in np.linspace(0, len(groups) - 1, _SAMPLED_FILES, dtype=int)]
        if dataset.card.in_place and len(groups) <= _LISTED_FILES:
            sample = list({group.path: group for group in groups}.values())
        with ThreadPoolExecutor() as pool:
            found = zip(sample, pool.map(file_size, (group.path for group in sample)), strict=True)
    for group, size in found:
        _check_size(group.path, group.bytes, size)


def _problem_in_tasks(dataset: "Dataset", spark: "SparkSession", split: str) -> str:
    """What is wrong with the first missing or altered file of a split; empty if all are intact."""

    def hash_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        groups = dataset.row_groups(split)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                if problem := _problem_with(groups[number]):
                    yield pa.RecordBatch.from_pydict({"id": [number], "problem": [problem]})
                    return

    groups = dataset.card.splits[split].num_groups or len(dataset.row_groups(split))
    tasks = min(groups, default_parallelism(spark))
    rows = spark.range(groups, numPartitions=tasks).mapInArrow(hash_files, "id bigint, problem string")
    first = rows.orderBy("id").limit(1).collect()
    return first[0].problem if first else ""


def _check_preprocessing(dataset: "Dataset") -> None:
    """Compare the files of the fitted preprocessing with the card, unless the card is too old to have their hash."""
    path, expected = dataset.preprocessing_path, dataset.card.preprocessing_sha256
    if path is None or expected is None:
        return
    try:
        found = hash_folder(path)
    except FileNotFoundError:
        raise DatasetError(missing(path)) from None
    if found != expected:
        raise DatasetError(altered(path))


def _check_metadata(dataset: "Dataset") -> None:
    """Compare the file for Petastorm's readers with the card. It may be missing: some copies lack hidden files."""
    for split, card in dataset.card.splits.items():
        path = join(dataset.path, split, METADATA_NAME)
        if card.metadata_sha256 and exists(path) and hash_file(path) != card.metadata_sha256:
            raise DatasetError(altered(path))


def _sizes(folder: str) -> dict[str, int]:
    """The sizes of files by name, from one listing of the folder."""
    return {entry.name: entry.size for entry in list_folder(folder) if not entry.is_folder}


def _check_size(path: str, expected: int, size: int | None) -> None:
    if size is None:
        raise DatasetError(missing(path))
    if size != expected:
        raise DatasetError(f"{path} has {size:,} bytes instead of {expected:,}. {REPAIR}")


def _problem_with(group: RowGroup) -> str:
    """What is wrong with a file's content; empty if it is intact."""
    try:
        unaltered = group.hash_again() == group.sha256
    except FileNotFoundError:
        return missing(group.path)
    return "" if unaltered else altered(group.path)


def _first_problem(groups: RowGroups) -> str:
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(groups), _HASHED_AT_ONCE):
            for problem in pool.map(_problem_with, groups[start : start + _HASHED_AT_ONCE]):
                if problem:
                    return problem
    return ""
