"""Training on the Parquet files of others, where they are."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.sql import SparkSession

from sparkdl import main
from sparkdl.data import Dataset, Loader, Phase, prepare
from sparkdl.data.in_place import parquet_files
from sparkdl.data.in_place.drawing import rows_of
from sparkdl.errors import ConfigError, DataError, DatasetError
from sparkdl.settings import Prepare, Source, Split, Stage

ROWS = 3000
SHARES = {"test": 0.1, "validation": 0.2}


def table(rows: int = ROWS, **columns: pa.Array) -> pa.Table:
    """Rows that the number ``id`` tells apart."""
    random = np.random.default_rng(0)
    kinds = np.array(["oak", "elm", "ash"])[random.integers(3, size=rows)]
    found = {
        "id": pa.array(np.arange(rows, dtype=np.float32)),
        "height": pa.array(random.normal(10, 3, rows)),
        "kind": pa.array(kinds).dictionary_encode(),
        "label": pa.array(np.where(kinds == "oak", 7, 12)),
        "price": pa.array(random.normal(size=rows)),
    }
    return pa.table(found | columns)


def write_files(folder: Path, rows: pa.Table) -> Path:
    """Two files, of five row groups of different sizes."""
    folder.mkdir(parents=True)
    pq.write_table(rows.slice(0, 2000), folder / "a first.parquet", row_group_size=700)
    pq.write_table(rows.slice(2000), folder / "second.parquet", row_group_size=900, compression="zstd")
    (folder / "_SUCCESS").touch()
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("theirs") / "rows", table())


def settings_for(folder: Path, output: Path, **changes: object) -> Prepare:
    chosen: dict[str, object] = {
        "output": str(output),
        "source": Source(format="parquet", path=str(folder)),
        "in_place": True,
        "features": ["id", "height", "kind"],
        "split": Split(fractions=SHARES),
        "stages": [Stage(kind="standardise", columns=["height"]), Stage(kind="index", columns=["kind"])],
    }
    return Prepare(**chosen | changes)


@pytest.fixture(scope="module")
def dataset(folder: Path, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return prepare(None, settings_for(folder, tmp_path_factory.mktemp("ours") / "trees"), spark=spark)


def read(dataset: Dataset, split: str, size: int = 1, **options: object) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """All inputs and labels that some ranks read in an epoch, and the batches of each."""
    inputs, labels, batches = [], [], []
    for rank in range(size):
        loader = Loader(dataset, split, batch_size=64, rank=rank, size=size, seed=3)
        found = list(loader.epoch(0, **options))
        batches.append(len(found))
        inputs += [batch.inputs.numpy() for batch in found]
        labels += [batch.labels.numpy() for batch in found]
    return np.concatenate(inputs), np.concatenate(labels), batches


def test_no_row_is_copied(dataset: Dataset) -> None:
    assert sorted(path.name for path in Path(dataset.path).iterdir()) == [
        "card.json",
        "preprocessing",
        "row_groups.parquet",
    ]
    assert dataset.label_names == ("7", "12")
    assert dataset.raw_columns == {"id": "float", "height": "double", "kind": "string"}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_row_is_read_once_by_some_rank_in_equal_steps(dataset: Dataset, size: int) -> None:
    ids = []
    for split in dataset.splits:
        inputs, labels, batches = read(dataset, split, size)
        assert len(set(batches)) == 1
        assert len(inputs) == len(labels) == dataset.rows(split)
        ids.append(inputs[:, 0])
    assert np.array_equal(np.sort(np.concatenate(ids)), np.arange(ROWS))


def test_ranks_apply_the_stages_that_were_fitted_on_the_training_rows(dataset: Dataset) -> None:
    inputs, labels, _ = read(dataset, "train")
    assert not np.array_equal(inputs[:, 0], np.sort(inputs[:, 0]))  # shuffled
    rows = table().take(pa.array(inputs[:, 0].astype(int)))
    height = rows.column("height").to_numpy()
    np.testing.assert_allclose(inputs[:, 1], (height - height.mean()) / height.std(ddof=1), rtol=1e-5, atol=1e-6)
    kinds = rows.column("kind").to_pylist()
    by_frequency = sorted(set(kinds), key=lambda kind: (-kinds.count(kind), kind))
    assert inputs[:, 2].tolist() == [by_frequency.index(kind) for kind in kinds]
    assert (labels == (rows.column("label").to_numpy() == 12)).all()


def test_shares_are_drawn_row_by_row_wherever_that_is_computed() -> None:
    drawn = {split: rows_of(split, 5, 100_000, fractions=SHARES, seed=1) for split in ("train", *SHARES)}
    assert np.array_equal(np.sort(np.concatenate(list(drawn.values()))), np.arange(100_000))
    for split, share in SHARES.items():
        assert len(drawn[split]) == pytest.approx(share * 100_000, rel=0.03)
    assert drawn["test"][:5].tolist() == [1, 17, 42, 56, 60]  # on both stacks
    assert rows_of("test", 6, 100_000, fractions=SHARES, seed=1)[:5].tolist() != drawn["test"][:5].tolist()


def test_an_epoch_goes_on_at_any_batch_and_with_another_number_of_ranks(dataset: Dataset) -> None:
    whole, _, (steps,) = read(dataset, "train")
    rest, _, _ = read(dataset, "train", start=7)
    assert np.array_equal(whole[7 * 64 :], rest)
    done = Loader(dataset, "train", batch_size=64, rank=0, size=1, seed=3).epoch(0)
    before = np.concatenate([next(done).inputs.numpy() for _ in range(10)])
    after, _, batches = read(dataset, "train", 3, after=[Phase(1, 64, 10)])
    assert len(set(batches)) == 1
    assert max(batches) < steps
    assert np.array_equal(np.sort(np.concatenate([before, after])[:, 0]), np.sort(whole[:, 0]))


def test_the_same_files_are_recognised_and_a_changed_one_is_named(
    folder: Path, dataset: Dataset, spark: SparkSession, tmp_path: Path
) -> None:
    again = prepare(None, settings_for(folder, Path(dataset.path)), spark=spark)
    assert again.digest == dataset.digest
    theirs, ours = tmp_path / "rows", tmp_path / "ours"
    shutil.copytree(folder, theirs)
    elsewhere = prepare(None, settings_for(theirs, ours), spark=spark)
    assert elsewhere.digest == dataset.digest  # of the content, wherever it is
    elsewhere.verify(spark)
    changed = theirs / "second.parquet"
    group = next(group for group in elsewhere.row_groups("train") if group.path == str(changed))
    content = bytearray(changed.read_bytes())
    content[group.span[0] + 200] ^= 1
    changed.write_bytes(content)
    for look in (elsewhere.verify, lambda: elsewhere.verify(spark), lambda: read(elsewhere, "train")):
        with pytest.raises(DatasetError, match=r"second\.parquet was altered"):
            look()
    changed.write_bytes(b"")
    with pytest.raises(DatasetError, match=r"second\.parquet was altered"):
        read(elsewhere, "train")
    changed.write_bytes(content[:-1])
    with pytest.raises(DatasetError, match=r"second\.parquet has .* bytes instead of"):
        Dataset.open(str(ours))
    changed.unlink()
    with pytest.raises(DatasetError, match=r"second\.parquet is missing"):
        Dataset.open(str(ours))


def test_arrays_numbers_to_predict_and_weights_are_read_where_they_are(spark: SparkSession, tmp_path: Path) -> None:
    points = np.random.default_rng(1).normal(size=(ROWS, 3))
    arrays = pa.FixedSizeListArray.from_arrays(pa.array(points.reshape(-1)), 3)
    folder = write_files(tmp_path / "rows", table(points=arrays, weight=pa.array(np.arange(ROWS) % 4)))
    changes = {"features": ["points"], "stages": [], "label": "price", "weight": "weight", "split": Split(fractions={})}
    dataset = prepare(None, settings_for(folder, tmp_path / "ours", **changes), spark=spark)
    assert (dataset.card.task, dataset.splits, dataset.preprocessing_path) == ("regression", ("train",), None)
    prices = table().column("price").to_numpy()
    assert dataset.card.label_scale is not None
    assert dataset.card.label_scale.mean == pytest.approx(prices.mean())
    assert dataset.card.mean_weight == 1.5
    batches = list(Loader(dataset, "train", batch_size=ROWS, shuffle=False).epoch(0))
    assert len(batches) == 1
    assert np.array_equal(batches[0].inputs.numpy(), points.astype(np.float32))
    assert np.array_equal(batches[0].labels.numpy(), prices)
    assert batches[0].weights is not None
    assert np.array_equal(batches[0].weights.numpy(), np.arange(ROWS) % 4 / 1.5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features": ["id", "heigth"]}, r"no column 'heigth' \(did you mean 'height'\?\)"),
        ({"features": ["id", "words"]}, "column 'words' is binary"),
        ({"features": ["id", "gaps"]}, r"'gaps' has 2 rows that are null or NaN .*file = 'a first.parquet', row = 4"),
        ({"features": ["id", "only_first"]}, "second.parquet has no column 'only_first'"),
        ({"features": ["id", "either"]}, "column 'either' is int64 in .*second.parquet and double in .*a first"),
        ({"split": Split(fractions={"validation": 0.0001})}, "split 'validation' has .* fewer than the 2 ranks"),
        ({"label": "several"}, "must have a single label; prepare a copy"),
    ],
)
def test_what_needs_a_copy_or_is_wrong_is_named_before_anything_is_written(
    changes: dict[str, object], words: str, spark: SparkSession, tmp_path: Path
) -> None:
    gaps = np.where(np.isin(np.arange(ROWS), [4, 2500]), np.nan, 1.0)
    several = pa.array([["a", "b"]] * ROWS)
    rows = table(words=pa.array([b"x"] * ROWS), gaps=pa.array(gaps), several=several, either=pa.array(gaps))
    folder = write_files(tmp_path / "rows", rows)
    others = rows.set_column(rows.schema.get_field_index("either"), "either", pa.array(np.arange(ROWS)))
    pq.write_table(rows.append_column("only_first", pa.array(gaps)).slice(0, 2000), folder / "a first.parquet")
    pq.write_table(others.slice(2000), folder / "second.parquet")
    settings = settings_for(folder, tmp_path / "ours", **{"stages": [], "features": ["id"]} | changes)
    with pytest.raises(DataError, match=words):
        prepare(None, settings, spark=spark)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows"]


def test_a_row_group_that_ranks_could_not_hold_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(folder / "a first.parquet")
    found = [group for batch in parquet_files._footer(0, path, ["id", "label"], path) for group in batch.to_pylist()]
    assert [(group["first"], group["rows"]) for group in found] == [(0, 700), (700, 700), (1400, 600)]
    monkeypatch.setattr(parquet_files, "LARGEST_GROUP_BYTES", 1000)
    with pytest.raises(DataError, match=r"row group 0 of .*a first\.parquet takes .* prepare a copy"):
        list(parquet_files._footer(0, path, ["id", "label"], path))


def test_what_is_no_file_of_theirs_cannot_stay_in_place(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"does not support a DataFrame"):
        prepare(spark.range(9), Prepare(output=str(tmp_path / "ours"), in_place=True), spark=spark)
    with pytest.raises(ConfigError, match=r"`source` is csv"):
        Prepare(output="x", in_place=True, source=Source(format="csv", path="y"))
    with pytest.raises(ConfigError, match=r"`sparse` and `split.stratify` would need"):
        Prepare(output="x", in_place=True, sparse=True, task="classification", split=Split(stratify=True))


def test_a_folder_of_parquet_files_is_trained_on_and_scored(
    folder: Path, empty_store: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    stages = [{"kind": "standardise", "columns": ["height"]}, {"kind": "index", "columns": ["kind"]}]
    tree = {
        "prepare": {"features": ["height", "kind"], "stages": stages},
        "train": {"dataset": str(folder), "run_dir": f"{tmp_path}/runs", "epochs": 3, "batch_size": 64},
        "cluster": {"num_ranks": 2},
        "score": {"source": {"format": "parquet", "path": str(folder)}, "output": f"{tmp_path}/predictions"},
        "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db", "spool": f"{tmp_path}/spool", "register_as": "trees"},
    }
    (tmp_path / "trees.yaml").write_text(yaml.safe_dump(tree))
    for command in (["train", "--dry-run"], ["train"], ["score"]):
        with pytest.raises(SystemExit) as ending:
            main([command[0], f"{tmp_path}/trees.yaml", *command[1:]])
        assert not ending.value.code, capfd.readouterr().err
        assert (tmp_path / "runs").exists() == ("--dry-run" not in command)
    predictions = pq.read_table(tmp_path / "predictions", columns=["label", "prediction"])
    right = np.mean(predictions.column("label").to_numpy() == predictions.column("prediction").to_numpy())
    assert right > 0.99
    (card,) = (tmp_path / "runs" / "datasets").iterdir()
    assert card.name.startswith("rows-")
    assert json.loads((card / "card.json").read_text())["in_place"]["folder"] == str(folder)
