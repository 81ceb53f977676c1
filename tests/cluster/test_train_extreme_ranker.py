"""The second stage on a real Spark: what its tasks leave behind, and what becomes of those that are killed."""

import os
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from sparkdl import Extreme, Prepare, Split, Stage, TrainedEnsemble, prepare, train_extreme
from sparkdl.cluster import run_tasks
from sparkdl.data import Dataset
from sparkdl.errors import ConfigError, ModelError, TrainingError
from sparkdl.extreme import expected_cost, train_ranker
from sparkdl.extreme.ensemble import Ensemble
from sparkdl.extreme.tasks import Pack
from sparkdl.tracking import download

CLASSES = 60
SETTINGS: dict[str, Any] = {
    "buckets": 8,
    "repetitions": 2,
    "hidden": [8],
    "epochs": 6,
    "batch_size": 16,
    "ranker": {
        "kind": "linear",
        "shortlist": 500,
        "candidates": 500,
        "random_negatives": 5,
    },  # more than there are classes
}
PARTS = 4


@pytest.fixture(scope="module", autouse=True)
def small_parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Four tasks for sixty classes, and a tracking store of this module's own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("store")
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        patch.setattr(expected_cost, "CLASSES_PER_TASK", CLASSES / PARTS)
        yield


@pytest.fixture(scope="module")
def dataset(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Classes come in pairs that share a word; another word is a class's own. Some rows are of both, some are empty."""
    rows = [
        ("test" if copy == 0 else "train", f"pair{number // 2} own{number} noise{copy}", [f"class{number}"])
        for number in range(CLASSES)
        for copy in range(8)
    ]
    rows += [
        ("train", f"own{number} own{number + 1}", [f"class{number}", f"class{number + 1}"]) for number in range(20)
    ]
    rows += [("train", "once", ["class1"]), ("test", "never", ["class1"])]  # and so without a feature
    settings = Prepare(
        output=str(tmp_path_factory.mktemp("ranker") / "dataset"),
        features=["text"],
        stages=[Stage(kind="count_text", columns=["text"], minimum_documents=2)],
        sparse=True,
        num_ranks=1,
        rows_per_group=100,
        split=Split(column="part", fractions={}),
    )
    return prepare(spark.createDataFrame(rows, "part string, text string, label array<string>"), settings, spark=spark)


@pytest.fixture(scope="module")
def trained(spark: SparkSession, dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> TrainedEnsemble:
    return train_extreme(dataset, Extreme(run_dir=str(tmp_path_factory.mktemp("run")), **SETTINGS), spark=spark)


def files(folder: str | Path) -> dict[str, tuple[int, bytes]]:
    """What the second stage has left behind."""
    return {path.name: (path.stat().st_ino, path.read_bytes()) for path in Path(folder).glob("ranker-*/*")}


def contents(folder: str | Path) -> dict[str, bytes]:
    return {name: content for name, (_, content) in files(folder).items()}


def test_the_ranker_puts_right_what_meta_models_leave_undecided(
    spark: SparkSession, dataset: Dataset, trained: TrainedEnsemble
) -> None:
    alone = train_extreme(dataset, Extreme(run_dir=str(Path(trained.folder).parent), **SETTINGS | {"ranker": "none"}))
    assert alone.folder == trained.folder  # and so nothing was trained
    assert trained.evaluations["test"].precision[0] > 0.95
    assert alone.evaluations["test"].precision[0] < 0.8


def test_each_part_is_a_file_and_shortlists_are_gone(trained: TrainedEnsemble) -> None:
    assert [name[:12] for name in sorted(files(trained.folder))] == [f"part-{number:06d}-" for number in range(PARTS)]


def test_only_what_is_missing_or_damaged_is_trained_again(
    spark: SparkSession, dataset: Dataset, trained: TrainedEnsemble, tmp_path: Path
) -> None:
    shutil.copytree(trained.folder, tmp_path / Path(trained.folder).name)
    before = files(tmp_path / Path(trained.folder).name)
    lost, damaged, *kept = sorted(before)
    for path in tmp_path.glob(f"*/*/{lost}"):
        path.unlink()
    for path in tmp_path.glob(f"*/*/{damaged}"):
        path.write_bytes(path.read_bytes()[:-1])
    again = train_extreme(dataset, Extreme(run_dir=str(tmp_path), **SETTINGS), spark=spark)
    assert contents(again.folder) == {name: content for name, (_, content) in before.items()}
    after = files(again.folder)
    assert {name for name in kept if after[name] == before[name]} == set(kept)


def killed(dataset: Dataset, settings: Extreme, options: Any, folder: str, parts: int, pack: Pack) -> list[str]:
    """The work of a part, whose Python worker is killed before it is done, if that is part 1."""
    if 1 in pack:
        os.kill(os.getpid(), signal.SIGKILL)
    return train_ranker.write_part(dataset, settings, options, folder, parts, pack)


def test_a_task_that_is_killed_over_and_over_stops_no_other_and_is_done_later(
    spark: SparkSession, dataset: Dataset, trained: TrainedEnsemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Extreme(run_dir=str(tmp_path), **SETTINGS)
    shutil.copytree(trained.folder, tmp_path / Path(trained.folder).name, ignore=shutil.ignore_patterns("ranker-*"))
    with monkeypatch.context() as patch:
        patch.setattr(train_ranker, "write_part", killed)
        with pytest.raises(TrainingError, match=r"gave up on the ranker's part 1; the finished ones are kept"):
            train_extreme(dataset, settings, spark=spark)
    expected = contents(trained.folder)
    left = contents(tmp_path / Path(trained.folder).name)
    assert {name: content for name, content in left.items() if name.startswith("part")} == {
        name: content for name, content in expected.items() if not name.startswith("part-000001")
    }
    later = train_extreme(dataset, settings, spark=spark)
    assert contents(later.folder) == expected
    np.testing.assert_array_equal(later.evaluations["test"].precision, trained.evaluations["test"].precision)


def test_tasks_that_run_twice_at_once_change_nothing(
    spark: SparkSession, dataset: Dataset, trained: TrainedEnsemble, tmp_path: Path
) -> None:
    settings = Extreme(run_dir=str(Path(trained.folder)), **SETTINGS)
    options, folder, groups = settings.ranker, str(tmp_path), range(len(dataset.row_groups("train")))
    decode = partial(train_ranker.write_shortlists, dataset, settings, options, trained.repetitions, folder)
    assert [found for _, found in run_tasks(decode, [tuple(groups)] * 2, spark, name="twins")] == [[], []]
    assert len(list(tmp_path.iterdir())) == len(groups) > 1
    learn = partial(train_ranker.write_part, dataset, settings, options, folder, PARTS)
    assert [found for _, found in run_tasks(learn, [tuple(range(PARTS))] * 2, spark, name="twins")] == [[], []]
    parts = {path.name: path.read_bytes() for path in tmp_path.glob("part-*")}
    assert parts == contents(trained.folder)


def test_damage_to_the_rankers_file_is_found(trained: TrainedEnsemble, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(download(trained.model_uri), tmp_path / "model"))
    path = folder / "ranker.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(ModelError, match=r"ranker\.safetensors was altered after training"):
        Ensemble.open(folder)


def test_what_is_learned_from_texts_of_labels_is_not_evaluated_on_them(
    spark: SparkSession, dataset: Dataset, tmp_path: Path
) -> None:
    def settings(split: str) -> Extreme:
        return Extreme(run_dir=str(tmp_path), **SETTINGS | {"ranker": {"kind": "linear", "label_texts": split}})

    trained = train_extreme(dataset, settings("test"), spark=spark)
    assert trained.evaluations == {}
    with pytest.raises(
        ConfigError, match=r"label_texts is 'labels', and .* has the splits train, test: prepare the texts"
    ):
        train_extreme(dataset, settings("labels"), spark=spark)
