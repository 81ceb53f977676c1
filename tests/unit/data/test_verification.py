"""What opening a dataset finds, and what verifying finds beside it."""

from pathlib import Path

import pytest

from sparkdl.data import Dataset
from sparkdl.errors import DatasetError

from .conftest import MakeDataset


def first_file(dataset: Dataset) -> Path:
    return Path(dataset.row_groups("train")[0].path)


def test_a_deleted_file_is_found_by_opening(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([4, 4])
    first_file(dataset).unlink()
    with pytest.raises(DatasetError, match=r"part-000000\.parquet is missing"):
        Dataset.open(dataset.path)


def test_a_deleted_file_is_found_by_verifying(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([4, 4])
    first_file(dataset).unlink()
    with pytest.raises(DatasetError, match=r"part-000000\.parquet is missing"):
        dataset.verify()


def test_a_truncated_file_is_found_by_opening(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([4, 4])
    first_file(dataset).write_bytes(first_file(dataset).read_bytes()[:-1])
    with pytest.raises(DatasetError, match=r"part-000000\.parquet has [\d,]+ bytes instead of"):
        Dataset.open(dataset.path)


def test_an_altered_file_is_found_by_verifying(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([4, 4])
    content = bytearray(first_file(dataset).read_bytes())
    content[20] ^= 1
    first_file(dataset).write_bytes(content)
    with pytest.raises(DatasetError, match=r"part-000000\.parquet was altered"):
        Dataset.open(dataset.path).verify()


def test_a_table_of_row_groups_that_is_missing_or_was_altered_is_named(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([4, 4])
    table = Path(dataset.path) / "row_groups.parquet"
    content = table.read_bytes()
    table.write_bytes(content[:-1])
    with pytest.raises(DatasetError, match=r"row_groups\.parquet has [\d,]+ bytes instead of"):
        Dataset.open(dataset.path)
    table.write_bytes(content[:-1] + b"!")
    with pytest.raises(DatasetError, match=r"row_groups\.parquet was altered"):
        Dataset.open(dataset.path).verify()
    table.unlink()
    with pytest.raises(DatasetError, match=r"row_groups\.parquet is missing"):
        Dataset.open(dataset.path)
