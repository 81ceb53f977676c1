import hashlib
import json
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl.data.card import Card
from sparkdl.data.dataset import Dataset
from sparkdl.data.reading.loader import Loader
from sparkdl.errors import DatasetError

from ...conftest import write_vectors
from .conftest import MakeDataset, make, make_sparse


def listing_its_files(dataset: Dataset) -> dict[str, Any]:
    """A card as it was before row groups had a file of their own."""
    tree: dict[str, Any] = json.loads(dataset.card_json) | {"version": 2}
    del tree["row_groups"]
    split = tree["splits"]["train"]
    del split["num_rows"], split["num_groups"]
    split["files"] = [asdict(group) for group in dataset.row_groups("train")]
    for file in split["files"]:
        file["path"] = f"train/{Path(file['path']).name}"
        del file["weights_at"]
    return tree


def signed(tree: dict[str, Any]) -> str:
    content = {key: value for key, value in tree.items() if key not in ("digest", "preprocessing_sha256")}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return json.dumps(tree | {"digest": hashlib.sha256(text.encode()).hexdigest()})


def test_a_dataset_knows_its_rows_and_classes(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([4, 5])
    assert dataset.splits == ("train",)
    assert dataset.rows("train") == 9
    assert [group.rows for group in dataset.row_groups("train")] == [4, 5]
    assert dataset.num_classes == 9
    assert dataset.preprocessing_path is None
    dataset.verify()


def test_a_dataset_travels_to_ranks_by_pickle(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([4])
    assert pickle.loads(pickle.dumps(dataset)) == dataset


def test_a_copy_has_the_same_digest(make_dataset: MakeDataset, tmp_path: Path) -> None:
    dataset = make_dataset([4])
    copied = Path(dataset.path).rename(tmp_path / "elsewhere")
    assert Dataset.open(str(copied)).digest == dataset.digest


def test_an_unknown_split_names_the_known_ones(make_dataset: MakeDataset) -> None:
    with pytest.raises(DatasetError, match="no split 'test'; it has train"):
        make_dataset([4]).rows("test")


def test_a_folder_without_a_card_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="there is no dataset in"):
        Dataset.open(str(tmp_path))


@pytest.mark.parametrize(
    "path", ["../secret/x.parquet", "/etc/passwd", "train/../../x", "s3://bucket/x", "train/..", "other/part-0.parquet"]
)
def test_a_hostile_card_cannot_point_outside(make_dataset: MakeDataset, path: str) -> None:
    dataset = make_dataset([4])
    tree = listing_its_files(dataset)
    tree["splits"]["train"]["files"][0]["path"] = path
    (Path(dataset.path) / "card.json").write_text(json.dumps(tree))
    with pytest.raises(DatasetError, match=r"card\.json is not a valid dataset card: .*split"):
        Dataset.open(dataset.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"version": 6},
            "has format 6, which this version of sparkdl does not know: use the version",
        ),
        ({"surprise": 1}, "surprise"),
        ({"label_names": []}, "label_names"),
        ({"source": "other"}, "the card was altered"),
        ({"input": {"column": "x", "kind": "image", "shape": [3], "dtype": "uint8"}}, "an image is uint8"),
    ],
)
def test_a_card_that_is_not_valid_names_the_key(
    make_dataset: MakeDataset, change: dict[str, object], message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        Card.from_json(json.dumps(json.loads(make_dataset([4]).card_json) | change))


def test_a_dataset_of_the_first_format_opens_unless_its_rows_are_sparse(tmp_path: Path) -> None:
    def first_format(dataset: Dataset) -> str:
        return signed(listing_its_files(dataset) | {"version": 1})

    assert Card.from_json(first_format(make(tmp_path / "whole", [4]))).version == 1
    with pytest.raises(DatasetError, match=r"sparse rows are lists, .* Prepare the dataset again"):
        Card.from_json(first_format(make_sparse(tmp_path / "sparse", [4])))


def test_a_card_made_before_petastorm_s_file_was_hashed_still_opens(make_dataset: MakeDataset) -> None:
    content = json.loads(make_dataset([4]).card_json)
    assert "metadata_sha256" not in content["splits"]["train"]
    left_out = {key: value for key, value in content.items() if key not in ("digest", "preprocessing_sha256")}
    text = json.dumps(left_out, sort_keys=True, separators=(",", ":"))
    assert Card.from_json(json.dumps(content)).digest == hashlib.sha256(text.encode()).hexdigest()


def test_a_dataset_whose_card_lists_its_files_is_the_same_dataset(make_dataset: MakeDataset) -> None:
    dataset = make_dataset([4, 5])
    (Path(dataset.path) / "card.json").write_text(signed(listing_its_files(dataset)))
    (Path(dataset.path) / "row_groups.parquet").unlink()
    older = Dataset.open(dataset.path)
    assert (older.card.version, older.rows("train")) == (2, 9)
    assert list(older.row_groups("train")) == list(dataset.row_groups("train"))
    older.verify()


def test_row_groups_of_unequal_size_are_refused(make_dataset: MakeDataset) -> None:
    with pytest.raises(DatasetError, match="equal size, give or take one row; found 4 and 6"):
        make_dataset([4, 6])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"rows": [4, -4]}, "is empty"),
        ({"crc32": [1, -1]}, "has a negative offset"),
        ({"split": ["train", None]}, "nulls"),
        ({"split": ["train", "other"]}, "does not have the card's row groups"),
        ({"surprise": [1, 2]}, "its columns are not split, rows"),
        ({"rows": ["a", "b"]}, "its columns are not split, rows"),
    ],
)
def test_a_hostile_table_of_row_groups_is_refused(
    make_dataset: MakeDataset, columns: dict[str, list[Any]], message: str
) -> None:
    dataset = make_dataset([4, 4])
    path = Path(dataset.path) / "row_groups.parquet"
    table = pq.read_table(path)
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        added = pa.array(values)
        table = table.append_column(name, added) if place < 0 else table.set_column(place, name, added)
    pq.write_table(table, path)
    content = path.read_bytes()
    tree = json.loads(dataset.card_json)
    tree["row_groups"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (Path(dataset.path) / "card.json").write_text(signed(tree))
    with pytest.raises(DatasetError, match=message):
        Dataset.open(dataset.path)


def test_rows_of_a_split_that_is_joined_are_trained_on_once_an_epoch(tmp_path: Path) -> None:
    files = {"train": [range(10), range(10, 21)], "validation": [range(21, 28)], "test": [range(28, 30)]}
    splits = {
        name: [(np.repeat(np.array(rows)[:, None], 3, axis=1), np.array(rows) % 2) for rows in parts]
        for name, parts in files.items()
    }
    dataset = write_vectors(tmp_path / "dataset", splits, label_names=("0", "1"))
    joined = dataset.joining("validation")
    assert (joined.splits, joined.rows("train"), joined.rows("test")) == (("train", "test"), 28, 2)
    assert joined.digest not in (dataset.digest, dataset.joining("test").digest)
    loaders = [Loader(joined, "train", batch_size=4, rank=rank, size=3) for rank in range(3)]
    seen = [value for loader in loaders for batch in loader.epoch(1) for value in batch.inputs[:, 0].tolist()]
    assert sorted(seen) == list(range(28))
    with pytest.raises(DatasetError, match="has no split 'validations'"):
        dataset.joining("validations")
