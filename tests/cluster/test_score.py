import math
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from shutil import copyfile

import mlflow.pyfunc
import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from pyspark import SparkFiles
from pyspark.ml import Pipeline
from pyspark.ml.feature import PCA, VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what Spark's own documentation calls it
from torch import nn

from sparkdl.data import Dataset, open_source, prepare
from sparkdl.data.card import Card, InputSpec
from sparkdl.data.model_card import ModelCard
from sparkdl.errors import ConfigError, DataError, DatasetError, ModelError, RegistryError, StorageError
from sparkdl.models import NETWORK_FILE, build, export_network, refer, write_reference
from sparkdl.scoring.dataframe import score
from sparkdl.scoring.network import NetworkModel
from sparkdl.scoring.output import write_predictions
from sparkdl.scoring.predictor import Predictor
from sparkdl.scoring.pyfunc import PyfuncModel
from sparkdl.settings import Prepare, Source, Split, Stage, Tracking
from sparkdl.tracking import download, start_run

from ..raw_inputs import raw_inputs

PIXELS = 48  # 8 x 6
Log = Callable[[Path, dict[str, str]], str]


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> Tracking:
    return Tracking(uri=f"sqlite:///{tmp_path_factory.mktemp('store')}/mlflow.db", register_as="pictures")


@pytest.fixture(scope="module")
def register(tracking: Tracking) -> Callable[[Path, dict[str, str]], str]:
    def register(folder: Path, columns: dict[str, str]) -> str:
        with start_run(tracking, params={}) as run:
            return run.register(run.log_model(folder, inputs=columns), {"test_accuracy": 0.5}).uri

    return register


@pytest.fixture
def configure(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Sets options of Spark's SQL for one test."""
    names: list[str] = []

    def configure(name: str, value: str) -> None:
        names.append(name)
        spark.conf.set(name, value)

    yield configure
    for name in names:
        spark.conf.unset(name)


@pytest.fixture(scope="module")
def images(register: Log, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A registered model of 8x6 images in three classes."""
    folder = tmp_path_factory.mktemp("images")
    card = ModelCard(
        input=InputSpec(column="image", kind="image", shape=(8, 6, 1), dtype="uint8"),
        label_names=("cat", "dog", "fish"),
        raw_columns={"image": "binary"},
        preprocessing=False,
    )
    _write(folder, card, "cnn")
    return register(folder, dict(card.raw_columns))


def _write(folder: Path, card: Card | ModelCard, model: str) -> None:
    torch.manual_seed(0)
    network = build(model, input_shape=card.input.shape, num_classes=len(card.label_names))
    sample = torch.zeros(1, *card.input.shape, dtype=getattr(torch, card.input.dtype))
    export_network(network, folder / NETWORK_FILE, sample)
    (folder / "card.json").write_text(card.model_dump_json())


def _pictures(spark: SparkSession, rows: int, parts: int = 2) -> DataFrame:
    pixels = np.random.default_rng(0).integers(0, 256, (rows, PIXELS), dtype=np.uint8)
    frame = [(i, bytearray(row.tobytes()), f"name {i}") for i, row in enumerate(pixels)]
    return spark.createDataFrame(frame, "id int, image binary, name string").repartition(parts, "id")


def test_scoring_appends_what_the_predictor_says_and_keeps_every_column(
    spark: SparkSession, images: str, tracking: Tracking
) -> None:
    rows = _pictures(spark, 300)
    scored = score(rows, images, tracking=tracking, top_k=2, batch_size=7)
    assert scored.schema[:3] == rows.schema[:]
    assert scored.schema[3:].simpleString() == (
        "struct<prediction:string,probability:double,top_k:array<struct<label:string,probability:double>>>"
    )
    found = scored.toPandas().sort_values("id")
    predictor = Predictor.load(download(images, tracking))
    inputs = np.stack([np.frombuffer(bytes(row), np.uint8).reshape(8, 6, 1) for row in found["image"]])
    assert isinstance(predictor.model, NetworkModel)
    expected = predictor.model.outputs_of(inputs)["logits"].softmax(dim=1).numpy()
    assert list(found["name"]) == [f"name {i}" for i in range(300)]
    assert list(found["prediction"]) == [predictor.labels[int(i)].as_py() for i in expected.argmax(axis=1)]
    np.testing.assert_allclose(found["probability"], expected.max(axis=1), rtol=1e-4)
    assert all(len(pairs) == 2 and pairs[0]["probability"] >= pairs[1]["probability"] for pairs in found["top_k"])


def test_the_pyfunc_and_spark_udf_say_the_same_as_score(
    spark: SparkSession, images: str, tracking: Tracking, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = _pictures(spark, 50)
    scored = score(rows, images, tracking=tracking).toPandas().sort_values("id", ignore_index=True)
    root = str(download(images, tracking).parent.parent)
    plain = mlflow.pyfunc.load_model(root).predict(pd.DataFrame({"image": [bytes(value) for value in scored["image"]]}))
    udf = mlflow.pyfunc.spark_udf(spark, root, env_manager="local", result_type="prediction string, probability double")
    by_udf = rows.select("id", udf(F.struct("image")).alias("answer")).select("id", "answer.*").toPandas()
    assert list(scored["prediction"]) == list(plain["prediction"]) == list(by_udf.sort_values("id")["prediction"])
    np.testing.assert_allclose(scored["probability"], plain["probability"], rtol=1e-4)


def test_empty_partitions_and_empty_tables_are_fine(
    spark: SparkSession, images: str, tracking: Tracking, configure: Callable[[str, str], None]
) -> None:
    assert score(_pictures(spark, 2, parts=5), images, tracking=tracking).count() == 2
    configure("spark.sql.execution.arrow.maxRecordsPerBatch", "-1")  # then empty partitions are empty batches
    assert len(score(_pictures(spark, 2, parts=5), images, tracking=tracking).collect()) == 2
    assert score(_pictures(spark, 2).where("id < 0"), images, tracking=tracking).collect() == []


def test_a_worker_loads_a_network_once_and_scoring_again_ships_nothing(
    spark: SparkSession, images: str, tracking: Tracking
) -> None:
    rows = _pictures(spark, 20)
    in_folder = F.udf(lambda _: [f"{path.name} {path.stat().st_ino}" for path in _shipped()], "array<string>")

    def shipped() -> list[str]:
        score(rows, images, tracking=tracking).collect()
        (row,) = spark.range(1).select(in_folder("id")).collect()
        return sorted(row[0])

    first = shipped()
    assert any(".safetensors" in name for name in first)
    assert shipped() == shipped() == first


def _shipped() -> list[Path]:
    """What Spark has brought to the task that asks."""
    return list(Path(SparkFiles.getRootDirectory()).iterdir())


def test_two_threads_may_score_one_model(
    spark: SparkSession, tracking: Tracking, register: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = ModelCard(
        input=InputSpec(column="image", kind="image", shape=(8, 6, 1), dtype="uint8"),
        label_names=("day", "night"),
        raw_columns={"image": "binary"},
        preprocessing=False,
    )
    _write(tmp_path, card, "cnn")
    model = register(tmp_path, dict(card.raw_columns))
    met = threading.Barrier(2)

    def copy(source: Path, target: Path) -> None:
        with suppress(threading.BrokenBarrierError):  # where the other thread waits for this one
            met.wait(timeout=2)
        copyfile(source, target)

    monkeypatch.setattr(shutil, "copyfile", copy)
    with ThreadPoolExecutor(2) as pool:
        scored = list(pool.map(lambda seed: score(_pictures(spark, 20), model, tracking=tracking).count(), range(2)))
    assert scored == [20, 20]


def test_columns_that_do_not_fit_are_refused_before_a_task_starts(
    spark: SparkSession, images: str, tracking: Tracking
) -> None:
    rows = _pictures(spark, 2)
    for broken, words in {
        rows.drop(
            "image"
        ): r"the model reads 'image' \(binary of shape 8x6x1 \(uint8\)\); missing 'image' among id, name",
        rows.withColumn("image", F.lit("text")): "column 'image' is string, but the model was trained on binary",
        rows.withColumn("top_k", F.lit(1)): "already have a column 'top_k', which scoring adds; rename or drop it",
        rows.withColumn("Top_K", F.lit(1)): "already have a column 'Top_K', which scoring adds; rename or drop it",
        rows.select("*", "image"): "the rows have 2 columns of the name 'image', as after a join; rename or drop",
    }.items():
        with pytest.raises(DataError, match=words):
            score(broken, images, tracking=tracking)
    with pytest.raises(DataError, match=r"several columns 'name' \(`key`\)"):
        score(rows.select("*", "name"), images, tracking=tracking, key="name")


def test_twins_that_the_model_does_not_read_come_back_as_they_were(
    spark: SparkSession, images: str, tracking: Tracking
) -> None:
    rows = _pictures(spark, 20)
    twins = rows.select("*", F.lit(7).alias("name"), F.col("image").alias("IMAGE"))
    scored = score(twins, images, tracking=tracking)
    assert scored.columns == ["id", "image", "name", "name", "IMAGE", "prediction", "probability", "top_k"]
    found, expected = scored.collect(), score(rows, images, tracking=tracking).collect()
    assert [(row[0], row[2], row[3], row[5]) for row in found] == [
        (row.id, row.name, 7, row.prediction) for row in expected
    ]


def test_names_that_differ_in_case_alone_are_two_names_where_spark_says_so(
    spark: SparkSession, images: str, tracking: Tracking, configure: Callable[[str, str], None]
) -> None:
    configure("spark.sql.caseSensitive", "true")
    rows = _pictures(spark, 2).withColumn("NAME", F.lit("other")).withColumn("Prediction", F.lit("theirs"))
    found = score(rows, images, tracking=tracking).orderBy("id").collect()
    assert [(row["name"], row["NAME"], row["Prediction"]) for row in found] == [
        (f"name {i}", "other", "theirs") for i in range(2)
    ]


def test_a_dot_is_a_part_of_a_column_s_name(
    spark: SparkSession, images: str, register: Log, tracking: Tracking, tmp_path: Path
) -> None:
    rows = _pictures(spark, 20)
    card = ModelCard.load(download(images, tracking))
    inputs = card.input.model_copy(update={"column": "the.image"})
    _write(tmp_path, card.model_copy(update={"unnamed": inputs, "raw_columns": {"the.image": "binary"}}), "cnn")
    dotted = rows.withColumnsRenamed({"image": "the.image", "name": "the.name", "id": "a`b"})
    found = score(dotted, register(tmp_path, {"the.image": "binary"}), tracking=tracking, key="the.name")
    assert found.columns == ["a`b", "the.image", "the.name", "prediction", "probability", "top_k"]
    assert found.collect() == score(rows, images, tracking=tracking).collect()


@pytest.mark.parametrize("option", ["top_k", "batch_size"])
def test_no_classes_and_no_rows_at_a_time_are_refused_at_once(
    spark: SparkSession, images: str, tracking: Tracking, option: str
) -> None:
    with pytest.raises(ConfigError, match=f"`{option}` is 0.*both must be 1 or more"):
        score(_pictures(spark, 1), images, tracking=tracking, **{option: 0})


def test_a_poisoned_row_is_told_by_its_key_and_all_others_are_scored_where_that_is_asked_for(
    spark: SparkSession, images: str, tracking: Tracking, tmp_path: Path
) -> None:
    poisoned = "case when id = 7 then cast('short' as binary) when id != 9 then image end"
    rows = _pictures(spark, 300).withColumn("image", F.expr(poisoned))
    written = write_predictions(score(rows, images, tracking=tracking, on_error="null"), str(tmp_path / "out"))
    assert (written.rows, written.failed) == (300, 2)
    found = spark.read.parquet(written.folder)
    assert found.columns == [*rows.columns, "prediction", "probability", "top_k", "error"]
    assert {row.id: row.error for row in found.where("prediction is null").collect()} == {
        7: "column 'image': no image (5 bytes, not the 48 of 8 x 6 x 1 raw pixels, and it begins with b'short')",
        9: "column 'image' has 1 null rows; fill or drop them",
    }
    for key, name in {
        "name": r"name = 'name \d'",
        None: r"row \d+ of partition \d \(id = \d, name = 'name \d'\)",
    }.items():
        failing = score(rows, images, tracking=tracking, key=key)
        with pytest.raises(
            DataError, match=rf"\d of \d+ rows cannot be scored: {name}: column 'image'.*set `on_error`"
        ):
            write_predictions(failing, str(tmp_path / "failed"))
    with pytest.raises(DataError, match=r"no column 'number'.* \(`key`\)"):
        score(rows, images, tracking=tracking, key="number")
    before = found.orderBy("id").collect()
    with pytest.raises(DatasetError, match="out exists already"):
        write_predictions(score(rows, images, tracking=tracking), written.folder)
    assert found.orderBy("id").collect() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_that_is_no_image_is_told_by_its_name(
    spark: SparkSession, register: Log, tracking: Tracking, tmp_path: Path
) -> None:
    card = ModelCard(
        input=InputSpec(column="image", kind="image", shape=(8, 6, 3), dtype="uint8"),
        label_names=("cat", "dog"),
        raw_columns={"image": "binary"},
        preprocessing=False,
    )
    for name in ("model", "raw"):
        (tmp_path / name).mkdir()
    _write(tmp_path / "model", card, "cnn")
    uri = register(tmp_path / "model", dict(card.raw_columns))
    Image.new("RGB", (9, 9)).save(tmp_path / "raw" / "_DSC0001.JPG")
    (tmp_path / "raw" / "page.jpg").write_text("<html>")
    rows = open_source(
        Source(format="images", path=str(tmp_path / "raw"), options={"height": 8, "width": 6}), spark
    ).orderBy("path")
    scored = score(rows, uri, tracking=tracking, on_error="null")
    assert scored.columns == ["image", "label", "path", "prediction", "probability", "top_k", "error"]
    reason = f"{tmp_path}/raw/page.jpg: no image (it begins with b'<html>')"
    assert [row.error for row in scored.collect()] == [None, reason]
    with pytest.raises(DataError, match=r"1 of \d rows cannot be scored: .*page\.jpg: no image \(it begins"):
        write_predictions(score(rows, uri, tracking=tracking), str(tmp_path / "failed"))


def test_a_job_killed_while_it_scores_leaves_nothing_that_looks_whole(
    spark: SparkSession, images: str, tracking: Tracking, tmp_path: Path
) -> None:
    place, source, configuration = tmp_path / "place", tmp_path / "rows", tmp_path / "score.yaml"
    place.mkdir()
    rows = _pictures(spark, 1000, parts=8)
    rows.write.parquet(str(source))
    folder = download(images, tracking).parent.parent
    configuration.write_text(
        f"score: {{model: {folder}, source: {{format: parquet, path: {source}}}, output: {place}/out}}\n"
        "cluster: {options: {spark.driver.memory: 512m}}\n"
    )
    command = [sys.executable, "-c", "from sparkdl import main; main()", "score", str(configuration)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while not any(place.glob(".out.preparing-*/_temporary")) and process.poll() is None:
            time.sleep(0.01)
        process.kill()
        said, _ = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    assert not (place / "out").exists()
    assert write_predictions(score(rows, images, tracking=tracking), f"{place}/out").rows == 1000
    assert [path.name for path in place.iterdir()] == ["out"]


def test_a_model_that_is_not_registered_names_those_that_are(
    spark: SparkSession, images: str, tracking: Tracking
) -> None:
    with pytest.raises(RegistryError, match="no registered model 'picture'; registered are 'pictures'"):
        score(_pictures(spark, 1), "models:/picture@candidate", tracking=tracking)


@pytest.fixture(scope="module")
def people(spark: SparkSession, register: Log, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, DataFrame]:
    """A registered model of raw columns of several types, preprocessed by Spark ML; and such rows."""
    rows = spark.range(200).selectExpr(
        "id",
        "if(id % 7 = 0, null, cast(id % 60 as int)) as age",
        "cast(id % 11 as double) / 3 as fare",
        "if(id % 3 = 0, 'port', 'star''board') as side",
        "if(id % 60 > 30, 'old', 'young') as label",
    )
    folder = tmp_path_factory.mktemp("people")
    settings = Prepare(
        output=str(folder / "dataset"),
        features=["age", "fare", "side"],
        stages=[
            Stage(kind="impute", columns=["age"]),
            Stage(kind="standardise", columns=["age", "fare"]),
            Stage(kind="index", columns=["side"]),
        ],
        split=Split(fractions={"test": 0.2}),
    )
    dataset: Dataset = prepare(rows, settings, spark=spark)
    model = folder / "model"
    model.mkdir()
    _write(model, dataset.card, "mlp")
    assert dataset.preprocessing_path
    Path(dataset.preprocessing_path).rename(model / "preprocessing")
    return register(model, dict(dataset.raw_columns)), rows


def test_raw_rows_are_preprocessed_and_come_back_as_they_were(
    spark: SparkSession, people: tuple[str, DataFrame], tracking: Tracking
) -> None:
    uri, rows = people
    rows = rows.withColumn("features", F.lit("a column that preprocessing would like to make"))
    scored = score(rows, uri, tracking=tracking)
    assert scored.columns == [*rows.columns, "prediction", "probability", "top_k"]
    assert scored.select(*rows.columns).orderBy("id").collect() == rows.orderBy("id").collect()


def test_the_pyfunc_preprocesses_without_spark_and_says_the_same(
    spark: SparkSession, people: tuple[str, DataFrame], tracking: Tracking
) -> None:
    uri, rows = people
    scored = score(rows, uri, tracking=tracking).orderBy("id").toPandas()
    raw = scored[["age", "fare", "side"]]
    answer = mlflow.pyfunc.load_model(str(download(uri, tracking).parent.parent)).predict(raw.head(20))
    assert list(answer["prediction"]) == list(scored["prediction"].head(20))
    np.testing.assert_allclose(answer["probability"], scored["probability"].head(20), rtol=1e-4)


def test_the_pyfunc_gives_no_predictions_for_no_rows(people: tuple[str, DataFrame], tracking: Tracking) -> None:
    uri, _ = people
    nothing = pd.DataFrame({"age": np.array([], "int32"), "fare": np.array([], "float64"), "side": np.array([], "str")})
    answer = PyfuncModel(download(uri, tracking)).predict(nothing)
    assert (len(answer), list(answer.columns)) == (0, ["prediction", "probability", "top_k"])


def test_a_stage_that_is_sparks_alone_is_applied_by_spark(
    spark: SparkSession, register: Log, tracking: Tracking, tmp_path: Path
) -> None:
    rows = spark.range(40).selectExpr("id", "cast(id % 5 as int) as a", "id / 3 as b", "id % 2 as label")
    stages = [
        VectorAssembler(inputCols=["a", "b"], outputCol="beside", handleInvalid="keep"),
        PCA(k=2, inputCol="beside", outputCol="features"),
    ]
    settings = Prepare(output=str(tmp_path / "dataset"), features=["a", "b"], split=Split(fractions={}))
    dataset = prepare(rows, settings, pipeline=Pipeline(stages=stages), spark=spark)
    (tmp_path / "model").mkdir()
    _write(tmp_path / "model", dataset.card, "mlp")
    Path(str(dataset.preprocessing_path)).rename(tmp_path / "model" / "preprocessing")
    uri = register(tmp_path / "model", dict(dataset.raw_columns))
    odd = rows.withColumn("a", F.expr("if(id = 3, 0.5D, double(a))"))
    found = score(odd, uri, tracking=tracking, on_error="null").orderBy("id").collect()
    assert {row.id: row.error for row in found if row.error} == {
        3: "column 'a': 0.5 is no int, which the model was trained on"
    }
    served = PyfuncModel(download(uri, tracking)).predict(rows.select("a", "b").toPandas())
    assert [row.prediction for row in found if row.id != 3] == [
        one for i, one in enumerate(served.prediction) if i != 3
    ]


def test_a_column_of_vectors_is_scored_like_one_of_arrays(
    spark: SparkSession, register: Log, tracking: Tracking, tmp_path: Path, configure: Callable[[str, str], None]
) -> None:
    rows = spark.range(50).selectExpr(
        "transform(sequence(0, 3), i -> cast(id % (i + 2) as float)) as features", "id % 2 as label"
    )
    dataset = prepare(rows, Prepare(output=str(tmp_path / "dataset")), spark=spark)
    _write(tmp_path, dataset.card, "mlp")
    uri = register(tmp_path, dict(dataset.raw_columns))
    arrays = score(rows, uri, tracking=tracking).select("prediction", "probability").collect()
    vectors = rows.withColumn("features", array_to_vector("features"))
    as_vectors = score(vectors, uri, tracking=tracking)
    assert as_vectors.schema["features"].dataType.simpleString() == "vector"
    assert as_vectors.select("prediction", "probability").collect() == arrays
    with pytest.raises(Exception, match=r"column 'features': \d+ rows do not have the size of \(4,\)"):
        score(rows.withColumn("features", F.expr("slice(features, 1, 3)")), uri, tracking=tracking).collect()
    configure("spark.sql.ansi.enabled", "true")
    words = rows.withColumn("features", F.expr("transform(features, x -> if(x < 4, string(x), 'four'))"))
    found = score(words, uri, tracking=tracking, on_error="null").collect()
    assert {row.error for row in found if "four" in row.features} == {
        "column 'features' has 1 null elements; fill them"
    }
    assert [row.prediction for row in found if not row.error] == [
        row.prediction for row, theirs in zip(arrays, found, strict=True) if "four" not in theirs.features
    ]


@pytest.mark.parametrize("ansi", ["false", "true"])
def test_numbers_that_training_could_not_have_seen_are_no_numbers(
    spark: SparkSession,
    people: tuple[str, DataFrame],
    tracking: Tracking,
    configure: Callable[[str, str], None],
    ansi: str,
) -> None:
    configure("spark.sql.ansi.enabled", ansi)
    uri, _ = people  # of which age is an int, and null in some rows
    ages = [7.0, None, float("nan"), 7.5, 1e12]
    rows = spark.createDataFrame(
        [(i, age, 1.0, "port") for i, age in enumerate(ages)], "id int, age double, fare double, side string"
    )
    found = score(rows, uri, tracking=tracking, on_error="null").orderBy("id").collect()
    why = "column 'age': {} is no int, which the model was trained on"
    assert [row.error for row in found] == [None, None, None, why.format("7.5"), why.format("1.0E12")]
    assert found[2].probability == pytest.approx(found[1].probability, rel=1e-6)
    assert found[0].probability != pytest.approx(found[1].probability, rel=1e-6)
    with pytest.raises(Exception, match=r"id = 3: column 'age': 7\.5 is no int, which"):
        score(rows, uri, tracking=tracking, key="id").collect()


@pytest.mark.parametrize("place", ["s3a://bucket/there", "s3://bucket/there", "abfs://files/there"])
def test_a_store_that_spark_lacks_the_package_for_is_named_in_one_line(spark: SparkSession, place: str) -> None:
    scored = spark.range(3).selectExpr("id as prediction")
    with pytest.raises(StorageError, match=f"^Spark cannot reach {place}: it has no .*{place.partition(':')[0]}://"):
        write_predictions(scored, place)


def test_predictions_go_to_uris_and_to_places_of_any_name(
    spark: SparkSession, images: str, tracking: Tracking, tmp_path: Path
) -> None:
    scored = score(_pictures(spark, 20), images, tracking=tracking)
    assert write_predictions(scored, f"file://{tmp_path}/one").rows == 20
    assert write_predictions(scored, f"{tmp_path}/Zwei ü=%20").rows == 20
    assert write_predictions(scored, f"{tmp_path}/rows.json", format="json").rows == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Zwei ü=%20", "one", "rows.json"]


def test_predictions_are_added_to_a_table_of_the_catalog(spark: SparkSession, tmp_path: Path) -> None:
    spark.sql(f"CREATE DATABASE predicted LOCATION '{tmp_path}'")
    table = "predicted.rows"
    try:
        for _ in range(2):
            scored = spark.range(10).selectExpr("id", "nullif(id, 3) as prediction")
            written = write_predictions(scored, table, format="table", mode="append")
            assert (written.rows, written.failed) == (10, 1)
        assert spark.table(table).count() == 20
        with pytest.raises(DatasetError, match=r"the table predicted\.rows already exists"):
            write_predictions(scored, table, format="table")
        with pytest.raises(ConfigError, match="which is not the name of a table"):
            write_predictions(scored, "rows USING (SELECT 1)", format="table", mode="append")
    finally:
        spark.sql("DROP DATABASE predicted CASCADE")


def test_an_image_struct_of_another_shape_is_not_scored(spark: SparkSession, tracking: Tracking, images: str) -> None:
    pictures = _pictures(spark, 2, parts=1).selectExpr(
        "id", "named_struct('height', if(id = 0, 8, 6), 'width', if(id = 0, 6, 8), 'nChannels', 1, 'data', image) image"
    )
    folder = download(images, tracking)
    made = raw_inputs(pictures.orderBy("id"), ModelCard.load(folder), folder)
    assert [(len(image), refused) for image, refused in made] == [(PIXELS, None), (0, None)]


@pytest.mark.parametrize("ansi", ["false", "true"])
def test_rows_that_would_end_a_stage_of_spark_leave_the_others_alone(
    spark: SparkSession,
    register: Log,
    tracking: Tracking,
    tmp_path: Path,
    configure: Callable[[str, str], None],
    ansi: str,
) -> None:
    configure("spark.sql.ansi.enabled", ansi)
    rows = spark.range(40).selectExpr(
        "id", "concat('word ', id % 3) as text", "array(id / 7d, id / 9d) as pair", "id as number", "id % 2 as label"
    )
    rows = rows.withColumn("pair", array_to_vector("pair"))
    settings = Prepare(
        output=str(tmp_path / "dataset"),
        features=["text", "pair", "number"],
        stages=[
            Stage(kind="hash_text", columns=["text"], dimensions=4),
            Stage(kind="standardise", columns=["pair", "number"]),
        ],
        split=Split(fractions={}),
    )
    dataset: Dataset = prepare(rows, settings, spark=spark)
    (tmp_path / "model").mkdir()
    _write(tmp_path / "model", dataset.card, "mlp")
    Path(str(dataset.preprocessing_path)).rename(tmp_path / "model" / "preprocessing")
    uri = register(tmp_path / "model", dict(dataset.raw_columns))
    arrays = (
        "case id when 3 then null when 4 then array(1d, 2d, 3d) when 5 then array(1d) when 6 then array(1d, null)"
        " else array(id / 7d, id / 9d) end"
    )
    poisoned = rows.withColumn("text", F.expr("if(id = 2, null, text)")).withColumn("pair", F.expr(arrays))
    expected = score(rows, uri, tracking=tracking).orderBy("id").collect()
    vectors = poisoned.withColumn("pair", F.when(~F.col("id").isin(3, 6), array_to_vector("pair")))
    words = poisoned.withColumn("pair", F.expr("transform(pair, x -> coalesce(string(x), 'none'))"))
    for bad in (poisoned, vectors, words):
        found = score(bad, uri, tracking=tracking, on_error="null").orderBy("id").collect()
        why = "column 'pair' is null or lacks a number, or is not 2 wide"
        assert {row.id: row.error for row in found if row.error} == {
            2: "column 'text' is null",
            **dict.fromkeys((3, 4, 5, 6), why),
        }
        likely = [row.probability for row in expected[7:]]
        assert [row.probability for row in found[7:]] == pytest.approx(likely, rel=1e-4)
    strange = {7: F.array(F.lit(math.nan), F.lit(1.0)), 8: F.array(F.lit(1.0), F.lit(-math.inf))}
    for number, pair in strange.items():
        vectors = vectors.withColumn(
            "pair", F.when(F.col("id") == number, array_to_vector(pair)).otherwise(F.col("pair"))
        )
    found = score(vectors, uri, tracking=tracking, on_error="null").orderBy("id").collect()
    assert {row.id for row in found if row.error} == {2, 3, 4, 5, 6, 7, 8}
    assert "has values that are NaN, infinite or beyond float32" in found[7].error + found[8].error
    skipping = settings.model_copy(update={"output": str(tmp_path / "skipping"), "on_bad_rows": "skip"})
    assert prepare(vectors, skipping, spark=spark).rows("train") == 40 - 7  # what is not scored is not learned from


def test_a_column_named_error_counts_no_failures(
    spark: SparkSession, images: str, tracking: Tracking, tmp_path: Path
) -> None:
    rows = _pictures(spark, 10).withColumn("error", F.lit("of theirs"))
    assert write_predictions(score(rows, images, tracking=tracking), str(tmp_path / "out")).failed == 0


class _Embedded(nn.Module):
    """Answers a vector beside logits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
        embedding = self.first(rows)
        return {"logits": self.second(embedding), "embedding": embedding}


def test_outputs_are_columns_behind_predictions_or_the_only_one(
    spark: SparkSession, register: Log, tracking: Tracking, tmp_path: Path
) -> None:
    card = ModelCard(
        input=InputSpec(column="features", kind="vector", shape=(4,), dtype="float32"),
        label_names=("no", "yes"),
        outputs={"embedding": (3,)},
        raw_columns={"features": "array<float>"},
        preprocessing=False,
    )
    network = _Embedded()
    export_network(network, tmp_path / NETWORK_FILE, torch.zeros(1, 4), outputs=["logits", "embedding"])
    (tmp_path / "card.json").write_text(card.model_dump_json())
    model = register(tmp_path, dict(card.raw_columns))
    rows = spark.createDataFrame([([1.0, 2.0, 3.0, 4.0],), ([0.0, 1.0, float("nan"), 0.0],)], "features array<float>")
    scored = score(rows, model, tracking=tracking, on_error="null")
    assert scored.columns == ["features", "prediction", "probability", "top_k", "embedding", "error"]
    expected = network.first(torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist()
    alone = score(rows, model, tracking=tracking, on_error="null", predict="embedding").drop("features")
    assert alone.schema.simpleString() == "struct<embedding:array<float>,error:string>"
    for found in (scored.select("embedding", "error").collect(), alone.collect()):
        assert found[0].embedding == pytest.approx(expected, rel=1e-5)
        assert found[0].error is None
        assert found[1].embedding is None
        assert "NaN" in found[1].error
    with pytest.raises(ConfigError, match=r"score\.predict is 'vector', .* it was trained with embedding"):
        score(rows, model, tracking=tracking, predict="vector")


def test_a_network_that_is_not_exported_is_built_in_tasks_where_its_package_is_trusted(
    spark: SparkSession, register: Log, tracking: Tracking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_nets.py").write_text(
        "from torch import nn\nimport own_sizes\n\nclass Net(nn.Linear):\n    def __init__(self):\n"
        "        super().__init__(4, own_sizes.CLASSES)\n"
    )
    (tmp_path / "own_sizes.py").write_text("CLASSES = 2\n")
    monkeypatch.chdir(tmp_path)  # the program's folder, which tasks have not
    monkeypatch.syspath_prepend(tmp_path)
    card = ModelCard(
        input=InputSpec(column="features", kind="vector", shape=(4,), dtype="float32"),
        label_names=("no", "yes"),
        raw_columns={"features": "array<float>"},
        preprocessing=False,
    )
    (tmp_path / "model").mkdir()
    network, arguments = nn.Linear(4, 2), {"input_shape": (4,), "num_classes": 2}
    write_reference(network, tmp_path / "model" / NETWORK_FILE, refer("own_nets:Net", arguments))
    (tmp_path / "model" / "card.json").write_text(card.model_dump_json())
    model = register(tmp_path / "model", dict(card.raw_columns))
    rows = spark.createDataFrame([([1.0, 2.0, 3.0, 4.0],)], "features array<float>")
    found = score(rows, model, tracking=tracking, trusted_modules=["own_nets"]).collect()[0].probability
    expected = network(torch.tensor([1.0, 2.0, 3.0, 4.0])).softmax(0).max().item()
    assert found == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ModelError, match=r"add it to `score\.trusted_modules`: \[own_nets\]"):
        score(rows, model, tracking=tracking)
    (tmp_path / "own_sizes.py").write_text("CLASSES = 200\n")
    for name in ("own_nets", "own_sizes"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ModelError, match=r"was trained with torch"):
        score(rows, model, tracking=tracking, trusted_modules=["own_nets"])
