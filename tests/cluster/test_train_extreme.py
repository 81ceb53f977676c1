"""Extreme classification on a real Spark: independent tasks, nothing shuffled, nothing trained twice, one model."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.models import Model
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession

from sparkdl import (
    Compress,
    Extreme,
    Gate,
    Prepare,
    Split,
    Stage,
    Tracking,
    TrainedEnsemble,
    compress,
    prepare,
    score,
    train,
    train_extreme,
)
from sparkdl.cluster import run_ranks, run_tasks
from sparkdl.data import Dataset
from sparkdl.errors import ConfigError, DataError, DatasetError, ModelError, TrainingError
from sparkdl.extreme.ensemble_card import EnsembleCard
from sparkdl.extreme.repetitions import Finished, finished
from sparkdl.extreme.tasks import Pack, train_pack
from sparkdl.tracking import download

CLASSES = 40
SETTINGS: dict[str, Any] = {
    "buckets": 8,
    "repetitions": 4,
    "repetitions_per_task": 2,
    "hidden": [16],
    "epochs": 20,
    "batch_size": 16,
}


def texts(spark: SparkSession) -> DataFrame:
    """Each class has a word of its own, in twelve texts beside words that say nothing."""
    rows = [
        ("test" if copy == 0 else "train", f"word{number} noise{copy} noise{(number + copy) % 7}", f"class{number}")
        for number in range(CLASSES)
        for copy in range(12)
    ]
    rows.append(("test", "word0", "a class that training never sees"))
    return spark.createDataFrame(rows, "part string, text string, label string")


@pytest.fixture(scope="module")
def dataset(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    settings = Prepare(
        output=str(tmp_path_factory.mktemp("extreme") / "dataset"),
        features=["text"],
        stages=[Stage(kind="count_text", columns=["text"])],
        sparse=True,
        num_ranks=1,
        split=Split(column="part", fractions={}),
    )
    return prepare(texts(spark), settings, spark=spark)


def training_stages(spark: SparkSession) -> list[Any]:
    """Spark's own records of the stages that trained repetitions or the ranker."""
    context = spark.sparkContext
    jvm: Any = context._jvm
    none = context._gateway.new_array(jvm.double, 0)  # type: ignore[union-attr]
    found = context._jsc.sc().statusStore().stageList(None, False, False, none, jvm.java.util.ArrayList())
    stages = [found.apply(index) for index in range(found.size())]
    names = ("repetitions", "shortlists", "ranker's part")
    return [stage for stage in stages if any(name in stage.description().toString() for name in names)]


TRACKING = Tracking(register_as="words", gate=Gate(metric="test_precision_at_1", minimum=0.9))


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A tracking store of this module's own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("store")
        patch.chdir(folder)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
        yield f"sqlite:///{folder}/mlflow.db"


@pytest.fixture(scope="module")
def trained(spark: SparkSession, dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> TrainedEnsemble:
    settings = Extreme(run_dir=str(tmp_path_factory.mktemp("run")), **SETTINGS)
    with mlflow.start_run(run_name="the caller's"):
        return train_extreme(dataset, settings, tracking=TRACKING, spark=spark)


def test_an_ensemble_learns_and_counts_what_it_never_saw(trained: TrainedEnsemble) -> None:
    found = trained.evaluations["test"]
    assert found.precision[0] > 0.9
    assert (found.labels, found.unseen_labels) == (41, 1)
    assert [record.repetition for record in trained.repetitions] == [0, 1, 2, 3]
    assert trained.missing == ()
    assert all(record.losses[-1] < record.losses[0] for record in trained.repetitions)


def test_an_ensemble_gets_a_form_in_fewer_bits_which_passes_the_gate_and_scores(
    spark: SparkSession, trained: TrainedEnsemble, dataset: Dataset, tmp_path: Path
) -> None:
    settings = Compress(forms=["int8", "onnx"], run_dir=str(tmp_path))
    made = compress(trained, settings, dataset=dataset, spark=spark)
    assert made.left_out == {"onnx": "an ensemble for very many classes has no such form; it has int8"}
    form = made.forms["int8"]
    assert (form.metric, form.rows) == ("test_precision_at_1", 41)
    assert form.original_figure == pytest.approx(trained.evaluations["test"].precision[0])
    assert form.figure >= form.original_figure - 0.005
    old, new = (Model.load(str(download(each.model_uri, each.tracking).parent.parent)) for each in (trained, made))
    assert new.metadata == old.metadata and new.metadata["repetitions"] == 4
    assert new.saved_input_example_info == old.saved_input_example_info
    assert new.signature.inputs == old.signature.inputs and new.signature.outputs == old.signature.outputs
    rows = texts(spark).where("part = 'test'")
    for model, chosen in ((made, "int8"), (made, "auto")):
        right = score(rows, model, form=chosen).where("prediction = label").count()  # type: ignore[arg-type]
        assert right / 41 == pytest.approx(form.figure if chosen == "int8" else form.original_figure)
    with pytest.raises(ConfigError, match="no form 'onnx'; it has int8"):
        score(rows, made, form="onnx")


def test_nothing_is_shuffled_and_no_stage_is_a_barrier(spark: SparkSession, trained: TrainedEnsemble) -> None:
    found = training_stages(spark)
    assert len(found) >= 4
    assert all(stage.numTasks() == 1 for stage in found)
    assert all(stage.shuffleReadBytes() == 0 and stage.shuffleWriteBytes() == 0 for stage in found)


def test_one_run_below_the_callers_holds_the_plan_and_a_run_for_each_repetition(
    trained: TrainedEnsemble, store: str
) -> None:
    client = MlflowClient(store)
    parent = client.get_run(trained.run_id)
    assert client.get_run(parent.data.tags["mlflow.parentRunId"]).info.run_name == "the caller's"
    assert parent.info.status == "FINISHED"
    assert parent.data.metrics["test_precision_at_1"] == pytest.approx(trained.evaluations["test"].precision[0])
    by_repetitions = client.get_metric_history(trained.run_id, "test_precision_at_1")
    assert [metric.step for metric in by_repetitions] == [1, 2, 4]
    assert {"precision_test.png", "plan.txt"} <= {entry.path for entry in client.list_artifacts(trained.run_id)}
    experiments = [parent.info.experiment_id]
    children = client.search_runs(experiments, f"tags.`mlflow.parentRunId` = '{trained.run_id}'")
    assert sorted(child.info.run_name for child in children) == [f"repetition {number}" for number in range(4)]
    for child in children:
        assert len(client.get_metric_history(child.info.run_id, "loss")) == SETTINGS["epochs"]
        assert child.data.metrics["rows_per_second"] > 0
        assert child.data.tags["host"]


def test_the_ensemble_is_one_registered_model_over_raw_rows(
    spark: SparkSession, trained: TrainedEnsemble, tmp_path: Path
) -> None:
    assert trained.registered is not None and trained.registered.moved
    rows = texts(spark).where("part = 'test'")
    scored = score(rows, "models:/words@candidate", top_k=3).toPandas()
    right = (scored["prediction"] == scored["label"]).mean()
    assert right == pytest.approx(trained.evaluations["test"].precision[0])
    assert list(scored["part"]) == ["test"] * 41
    assert [len(pairs) for pairs in scored["top_k"]] == [3] * 41
    assert [pairs[0]["label"] for pairs in scored["top_k"]] == list(scored["prediction"])
    assert scored["probability"].between(0, 1).all()

    folder = download(trained.model_uri)
    metadata = mlflow.models.Model.load(str(folder.parent.parent)).metadata
    assert metadata is not None
    assert (metadata["repetitions"], metadata["repetitions_asked"], metadata["repetitions_missing"]) == (4, 4, [])
    assert metadata["plan"]["mach"]["parameters"] == trained.plan.mach.parameters
    assert "numba==" in (folder.parent.parent / "requirements.txt").read_text()
    plain = mlflow.pyfunc.load_model(str(folder.parent.parent)).predict(scored[["text"]])
    assert list(plain["prediction"]) == list(scored["prediction"])
    np.testing.assert_allclose(plain["probability"], scored["probability"], rtol=1e-5)
    assert [[pair["label"] for pair in row] for row in plain["top_k"].str[:3]] == [
        [pair["label"] for pair in row] for row in scored["top_k"]
    ]

    poisoned = rows.limit(3).unionByName(rows.limit(1).selectExpr("part", "cast(null as string) text", "label"))
    found = score(poisoned, trained, on_error="null").toPandas()  # what training returned knows its model
    assert list(found["prediction"][:3]) == list(scored["prediction"][:3])
    assert [error is None for error in found["error"]] == list(found["text"].notna()) == [True, True, True, False]
    with pytest.raises(DataError, match="column 'text' is null in 1 rows"):
        mlflow.pyfunc.load_model(str(folder.parent.parent)).predict(found[["text"]])

    damaged = shutil.copytree(folder.parent.parent, tmp_path / "damaged")
    weights = next(damaged.rglob("repetition-0002.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match=r"repetition-0002\.safetensors was altered"):
        mlflow.pyfunc.load_model(str(damaged))
    with pytest.raises(Exception, match=r"ModelError: .*repetition-0002\.safetensors was altered"):
        score(rows, str(damaged)).collect()


def test_what_is_finished_is_never_trained_again_and_what_was_damaged_is(
    spark: SparkSession, dataset: Dataset, trained: TrainedEnsemble, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained.folder, tmp_path / Path(trained.folder).name))
    before = {path.name: (path.stat().st_ino, path.read_bytes()) for path in run.glob("repetition-*")}
    weights = run / "repetition-0002.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    settings = Extreme(run_dir=str(tmp_path), **(SETTINGS | {"repetitions": 5}))
    more = train_extreme(dataset, settings, spark=spark)
    after = {path.name: (path.stat().st_ino, path.read_bytes()) for path in run.glob("repetition-*")}
    assert {name for name in before if before[name] != after[name]} == {
        "repetition-0002.safetensors",
        "repetition-0002.json",
    }
    assert after.keys() - before.keys() == {"repetition-0004.safetensors", "repetition-0004.json"}
    assert more.evaluations["test"].precision[0] > 0.9


def test_jobs_with_other_settings_in_the_same_place_leave_each_others_repetitions_alone(
    spark: SparkSession, dataset: Dataset, tmp_path: Path
) -> None:
    settings = Extreme(run_dir=str(tmp_path), **(SETTINGS | {"repetitions": 1, "epochs": 1}))
    first = train_extreme(dataset, settings, spark=spark)
    before = {path: path.stat().st_ino for path in Path(first.folder).rglob("*")}
    other = train_extreme(dataset, settings.model_copy(update={"seed": 5}), spark=spark)
    assert shas(other.repetitions) != shas(first.repetitions)
    again = train_extreme(dataset, settings, spark=spark)
    assert shas(again.repetitions) == shas(first.repetitions)
    assert before == {path: path.stat().st_ino for path in Path(first.folder).rglob("*")}


def shas(records: Sequence[Finished]) -> list[str]:
    return [record.sha256 for record in records]


def test_a_task_that_runs_twice_at_once_changes_nothing(
    spark: SparkSession, dataset: Dataset, trained: TrainedEnsemble, tmp_path: Path
) -> None:
    settings = Extreme(run_dir=str(tmp_path), **SETTINGS)
    twins = list(run_tasks(partial(train_pack, dataset, settings, "this"), [(0, 1), (0, 1)], spark, name="twins"))
    for _, found in twins:
        assert not isinstance(found, Exception)
        assert shas([Finished.from_json(line) for line in found]) == shas(trained.repetitions[:2])
    for repetition, expected in zip((0, 1), shas(trained.repetitions), strict=False):
        record = finished(str(tmp_path), repetition, made_of="this")
        assert record is not None and record.sha256 == expected
    assert len(list(tmp_path.iterdir())) == 4


def at_once_or_never(pack: Pack) -> list[str]:
    if 0 not in pack:
        time.sleep(600)
    return []


def test_whoever_stops_listening_leaves_no_task_behind(spark: SparkSession) -> None:
    running = run_tasks(at_once_or_never, [(0,), (1,)], spark, name="waiting")
    assert next(running) == ((0,), [])
    started = time.monotonic()
    running.close()
    assert run_ranks(lambda rank: rank.size, 2, spark=spark) == [2, 2]  # which takes every slot
    assert time.monotonic() - started < 60


def killed(dataset: Dataset, settings: Extreme, made_of: str, pack: Pack) -> list[str]:
    """Training whose Python worker is killed a moment after it began, if it has repetition 0."""
    if 0 in pack:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    return train_pack(dataset, settings, made_of, pack)


def test_lost_repetitions_stop_the_others_from_nothing_and_can_be_done_without_or_trained_later(
    spark: SparkSession, dataset: Dataset, trained: TrainedEnsemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Extreme(run_dir=str(tmp_path / "run"), **SETTINGS)
    with monkeypatch.context() as patch:
        patch.setattr("sparkdl.extreme.missing_repetitions.train_pack", killed)
        words = r"gave up on repetitions 0, 1; 2 of 4 are .* extreme\.minimum_repetitions to 2"
        with pytest.raises(TrainingError, match=words):
            train_extreme(dataset, settings, spark=spark)
        fewer = train_extreme(dataset, settings.model_copy(update={"minimum_repetitions": 2}), spark=spark)
    assert fewer.missing == (0, 1)
    assert shas(fewer.repetitions) == shas(trained.repetitions[2:])
    card = EnsembleCard.load(download(fewer.model_uri))
    assert (card.asked, card.missing, sorted(card.repetitions)) == (4, (0, 1), [2, 3])
    assert fewer.evaluations["test"].precision[0] > 0.5

    later = train_extreme(dataset, settings, spark=spark)
    assert shas(later.repetitions) == shas(trained.repetitions)


def test_more_buckets_than_classes_are_warned_of_and_one_class_or_whole_rows_are_refused(
    spark: SparkSession, dataset: Dataset, tmp_path: Path
) -> None:
    settings = Extreme(run_dir=str(tmp_path / "run"), **(SETTINGS | {"buckets": 64, "repetitions": 1, "epochs": 1}))
    with pytest.warns(UserWarning, match="hashing buys nothing"):
        train_extreme(dataset, settings, spark=spark)
    card = dataset.card
    assert card.labels is not None
    single = card.model_copy(update={"labels": card.labels.model_copy(update={"classes": 1})})
    with pytest.raises(ConfigError, match="single class"):
        train_extreme(Dataset(dataset.path, single), settings, spark=spark)
    misspelt = TRACKING.model_copy(update={"gate": Gate(metric="test_accuracy")})
    with pytest.raises(ConfigError, match="'test_accuracy' is not measured here; there will be test_ndcg_at_1"):
        train_extreme(dataset, settings, tracking=misspelt, spark=spark)
    hashless = settings.model_copy(update={"hash_family": "identity", "hashing": "random", "buckets": 2})
    with pytest.raises(ConfigError, match=r"needs a bucket for each of the .* classes, not 2 buckets"):
        train_extreme(dataset, hashless, spark=spark)
    dense = card.model_copy(update={"unnamed": card.input.model_copy(update={"kind": "vector"})})
    with pytest.raises(DatasetError, match=r"prepare\.sparse: true"):
        train_extreme(Dataset(dataset.path, dense), settings, spark=spark)


def test_a_row_too_large_to_add_up_counts_as_missed_and_loses_no_ensemble(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows: list[tuple[str, Any, str]] = [
        ("train", Vectors.sparse(CLASSES, {i: 1.0}), f"class{i}") for i in range(CLASSES)
    ]
    large = Vectors.dense([3e38] * CLASSES)
    rows += [("test", row[1], row[2]) for row in rows] + [("test", large, "class0")]
    settings = Prepare(
        output=str(tmp_path / "d"), sparse=True, unit_norm=False, num_ranks=1, split=Split(column="part", fractions={})
    )
    dataset = prepare(spark.createDataFrame(rows, ["part", "x", "label"]), settings)
    chosen = SETTINGS | {"epochs": 60, "learning_rate": 0.1}
    trained = train_extreme(dataset, Extreme(run_dir=str(tmp_path / "run"), **chosen), spark=spark)
    assert "1 rows of split 'test' give no finite result and count as missed" in caplog.text
    assert 0.5 < trained.evaluations["test"].precision[0] <= CLASSES / (CLASSES + 1)


def test_ordinary_training_refuses_sparse_rows_before_it_begins(dataset: Dataset) -> None:
    with pytest.raises(DatasetError, match="sparkdl train-extreme"):
        train(dataset)


def test_impossible_numbers_of_repetitions_are_clear_errors() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        Extreme(repetitions=0)
    with pytest.raises(ValueError, match="more than the 4 repetitions"):
        Extreme(repetitions=4, minimum_repetitions=5)
