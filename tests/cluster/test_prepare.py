"""Prepare, with a real Spark: one idx folder, tables of every kind, and everything that can be wrong with them."""

import gzip
import json
import shutil
import uuid
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pyspark.ml import Pipeline
from pyspark.ml.feature import MinMaxScaler, SQLTransformer, VectorAssembler
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkdl.data import Dataset, open_source, prepare
from sparkdl.data.bad_rows import PROBLEM, WRONG, what_is_wrong
from sparkdl.data.card import Card
from sparkdl.data.model_card import ModelCard
from sparkdl.data.preparing.features import choose_inputs
from sparkdl.data.preparing.label_column import LABEL
from sparkdl.data.preparing.row_problems import find_problems
from sparkdl.data.reading.loader import Loader
from sparkdl.errors import ConfigError, DataError, DatasetError
from sparkdl.preprocessing import STAGES_FILE, as_matrix, read_pipeline
from sparkdl.scoring.output import write_predictions
from sparkdl.settings import Prepare, Source, Split, Stage

from ..applied_stages import made_again
from ..idx_files import write_idx
from ..raw_inputs import raw_inputs

NO_SPLIT = Split(fractions={})


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray, np.ndarray]:
    """A folder of IDX files with 203 + 40 images of 4 x 5 in three classes."""
    folder = tmp_path_factory.mktemp("idx")
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (243, 4, 5), dtype=np.uint8)
    labels = random.integers(0, 3, 243, dtype=np.uint8)
    write_idx(folder, "train", images[:203], labels[:203])
    write_idx(folder, "t10k", images[203:], labels[203:])
    return folder, images, labels


@pytest.fixture(scope="module")
def digits_settings(digits: tuple[Path, np.ndarray, np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> Prepare:
    return Prepare(
        output=str(tmp_path_factory.mktemp("prepared") / "digits"),
        source=Source(format="idx", path=str(digits[0])),
        split=Split(column="split", fractions={"validation": 0.2}),
        rows_per_group=25,
    )


@pytest.fixture(scope="module")
def digits_dataset(digits_settings: Prepare, spark: SparkSession) -> Dataset:
    return prepare(None, digits_settings, spark=spark)


@pytest.fixture(scope="module")
def people(spark: SparkSession) -> DataFrame:
    """A table with a number, a number that is sometimes missing, a category and a text."""
    rows = [
        (
            i,
            float(i),
            None if i % 10 == 0 else i / 2,
            "red" if i % 3 else "blue",
            f"word{i % 4} and more",
            f"class{i % 2}",
        )
        for i in range(100)
    ]
    return spark.createDataFrame(
        rows, "id long, age double, fare double, colour string, text string, label string"
    ).cache()


def contents(dataset: Dataset, split: str) -> Counter[tuple[bytes, int]]:
    """The rows of a split as the loader of a single rank gives them."""
    batches = Loader(dataset, split, batch_size=64).epoch(0)
    return Counter(
        (row.numpy().tobytes(), int(label)) for batch in batches for row, label in zip(*batch[:2], strict=True)
    )


def test_every_image_arrives_once_in_its_split(
    digits: tuple[Path, np.ndarray, np.ndarray], digits_dataset: Dataset
) -> None:
    _, images, labels = digits
    assert digits_dataset.splits == ("train", "test", "validation")
    assert digits_dataset.input.shape == (4, 5, 1)
    assert digits_dataset.label_names == ("0", "1", "2")
    found = {split: contents(digits_dataset, split) for split in digits_dataset.splits}
    expected = Counter((image.tobytes(), int(label)) for image, label in zip(images, labels, strict=True))
    assert found["train"] + found["validation"] + found["test"] == expected
    assert found["test"] == Counter((i.tobytes(), int(k)) for i, k in zip(images[203:], labels[203:], strict=True))
    assert 20 <= digits_dataset.rows("validation") <= 60


def test_statistics_are_those_of_the_training_split(digits_dataset: Dataset) -> None:
    pixels = np.concatenate([b.inputs.numpy() for b in Loader(digits_dataset, "train", batch_size=64).epoch(0)]) / 255
    assert digits_dataset.input.mean == pytest.approx((pixels.mean(),))
    assert digits_dataset.input.std == pytest.approx((pixels.std(),))
    labels = [int(label) for b in Loader(digits_dataset, "train", batch_size=64).epoch(0) for label in b.labels]
    assert digits_dataset.card.splits["train"].class_counts == tuple(np.bincount(labels, minlength=3))


def test_row_groups_are_equal_and_a_multiple_of_the_ranks(digits_dataset: Dataset) -> None:
    for split in digits_dataset.splits:
        sizes = [group.rows for group in digits_dataset.row_groups(split)]
        assert len(sizes) % 2 == 0
        assert max(sizes) - min(sizes) <= 1
    assert len(digits_dataset.row_groups("train")) == 6


def test_spark_reads_the_same_rows(spark: SparkSession, digits_dataset: Dataset) -> None:
    rows = spark.read.parquet(f"{digits_dataset.path}/test")
    assert dict(rows.dtypes) == {"image": "binary", "label": "bigint"}
    assert Counter((bytes(row.image), row.label) for row in rows.collect()) == contents(digits_dataset, "test")


def test_verifying_in_tasks_names_the_altered_file(spark: SparkSession, people: DataFrame, tmp_path: Path) -> None:
    dataset = prepare(people, Prepare(output=str(tmp_path / "d"), features=["age"], split=NO_SPLIT))
    dataset.verify(spark)
    altered = Path(dataset.row_groups("train")[1].path)
    content = bytearray(altered.read_bytes())
    content[50] ^= 1
    altered.write_bytes(content)
    with pytest.raises(DatasetError, match=rf"{altered.stem}\.parquet was altered"):
        dataset.verify(spark)


def test_classes_have_the_names_that_people_gave_them_and_labels_stay(
    digits_settings: Prepare, tmp_path: Path, spark: SparkSession
) -> None:
    settings = digits_settings.model_copy(update={"output": str(tmp_path / "named"), "class_names": {"1": "one"}})
    dataset = prepare(None, settings, spark=spark)
    assert dataset.label_names == ("0", "1", "2")
    assert dataset.class_names == ("0", "one", "2")
    swapped = settings.model_copy(update={"output": str(tmp_path / "swapped"), "class_names": {"one": "1"}})
    with pytest.raises(DataError, match=r"`class_names` has none of the labels \(0, 1, 2\)"):
        prepare(None, swapped, spark=spark)


def test_a_dataset_from_before_a_key_was_known_is_recognised_at_its_default(
    digits_dataset: Dataset, digits_settings: Prepare, tmp_path: Path, spark: SparkSession
) -> None:
    folder = shutil.copytree(digits_dataset.path, tmp_path / "older")
    settings_then = {key: value for key, value in digits_dataset.card.settings.items() if key != "class_names"}
    content = dict(digits_dataset.card) | {"settings": settings_then}
    del content["digest"]
    older = Card.create(**content)
    (folder / "card.json").write_text(older.to_json())
    settings = digits_settings.model_copy(update={"output": str(folder)})
    assert prepare(None, settings, spark=spark).digest == older.digest
    with pytest.raises(DatasetError, match=r"class_names was \{\} and is now \{'1': 'one'\}"):
        prepare(None, settings.model_copy(update={"class_names": {"1": "one"}}), spark=spark)


def test_preparing_again_is_recognised_and_skipped(
    digits_settings: Prepare, digits_dataset: Dataset, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    before = Path(digits_dataset.path, "card.json").stat().st_mtime_ns
    with caplog.at_level("INFO", logger="sparkdl"):
        again = prepare(None, digits_settings, spark=spark)
    assert again == digits_dataset
    assert Path(digits_dataset.path, "card.json").stat().st_mtime_ns == before
    assert "nothing to prepare" in caplog.text


def test_other_settings_are_refused_and_named(digits_settings: Prepare, digits_dataset: Dataset) -> None:
    with pytest.raises(DatasetError, match=r"other settings: seed was 0 and is now 7\. Choose another"):
        prepare(None, digits_settings.model_copy(update={"seed": 7}))


def test_other_rows_are_refused(digits_settings: Prepare, digits_dataset: Dataset, spark: SparkSession) -> None:
    assert digits_settings.source
    fewer = open_source(digits_settings.source, spark).limit(200)
    with pytest.raises(DatasetError, match=r"from other rows \(243 then, 200 now"):
        prepare(fewer, digits_settings)


def test_the_result_depends_on_rows_and_seed_alone(people: DataFrame, tmp_path: Path) -> None:
    def digest(name: str, rows: DataFrame, seed: int) -> str:
        settings = Prepare(output=str(tmp_path / name), features=["age", "id"], seed=seed)
        return prepare(rows, settings).row_groups("train")[0].sha256

    first = digest("a", people, 1)
    assert digest("b", people.repartition(3).orderBy(sf.desc("age")), 1) == first
    assert digest("c", people, 2) != first


def test_rows_that_are_all_alike_still_fill_equal_groups(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(50).select(sf.lit(1.0).alias("x"), sf.lit("a").alias("label"))
    dataset = prepare(rows, Prepare(output=str(tmp_path / "d"), split=NO_SPLIT, rows_per_group=12))
    assert [group.rows for group in dataset.row_groups("train")] == [13, 13, 12, 12]


def test_preprocessing_is_fitted_on_training_rows_and_kept(people: DataFrame, tmp_path: Path) -> None:
    stages = [
        Stage(kind="impute", columns=["fare"]),
        Stage(kind="index", columns=["colour"]),
        Stage(kind="hash_text", columns=["text"], dimensions=8),
        Stage(kind="standardise", columns=["age", "fare"]),
    ]
    rows = people.withColumn("part", sf.when(sf.col("id") < 60, "train").otherwise("test"))
    settings = Prepare(
        output=str(tmp_path / "d"),
        features=["age", "fare", "colour", "text"],
        stages=stages,
        split=Split(column="part", fractions={}),
    )
    dataset = prepare(rows, settings)
    assert dataset.input.shape == (2 + 1 + 8,)
    assert dataset.raw_columns == {"age": "double", "fare": "double", "colour": "string", "text": "string"}
    train = np.concatenate([b.inputs.numpy() for b in Loader(dataset, "train", batch_size=64).epoch(0)])
    assert np.allclose(train[:, :2].mean(axis=0), 0, atol=1e-5)
    assert np.allclose(train[:, :2].std(axis=0, ddof=1), 1, atol=1e-5)
    again = as_matrix(made_again(dataset, rows.where("part = 'test'")))
    expected = Counter(row.tobytes() for row in again)
    assert expected == Counter(vector for vector, _ in contents(dataset, "test").elements())


def test_words_are_kept_in_their_order_as_hashes(spark: SparkSession, tmp_path: Path) -> None:
    texts = "A cat sat on the mat", "the CAT", "..."
    rows = spark.createDataFrame([(text, "a") for text in texts], "text string, label string")
    stage = Stage(kind="hash_words", columns=["text"], dimensions=4, vocabulary=1 << 24)
    dataset = prepare(rows, Prepare(output=str(tmp_path / "d"), stages=[stage], split=NO_SPLIT, num_ranks=1))
    (batch,) = Loader(dataset, "train", batch_size=3, shuffle=False).epoch(0)
    empty, short, full = sorted(batch.inputs.tolist(), key=np.count_nonzero)
    a, cat, sat, on = full
    assert len({a, cat, sat, on}) == 4 and all(1 <= number <= 1 << 24 for number in full)
    assert short[1:] == [cat, 0, 0] and short[0] not in full
    assert empty == [0, 0, 0, 0]
    found = as_matrix(made_again(dataset, rows)).tolist()
    assert sorted(found, key=np.count_nonzero) == [empty, short, full]


def test_a_pipeline_of_the_user_takes_the_place_of_the_stages(people: DataFrame, tmp_path: Path) -> None:
    def pipeline() -> Pipeline:
        assembler = VectorAssembler(inputCols=["age", "id"], outputCol="joined")
        return Pipeline(stages=[assembler, MinMaxScaler(inputCol="joined", outputCol="features")])

    settings = Prepare(output=str(tmp_path / "d"), features=["age", "id"], split=NO_SPLIT)
    dataset = prepare(people, settings, pipeline=pipeline())
    values = np.concatenate([b.inputs.numpy() for b in Loader(dataset, "train", batch_size=64).epoch(0)])
    assert (values.min(), values.max()) == (0, 1)
    assert prepare(people, settings, pipeline=pipeline()) == dataset
    with pytest.raises(DatasetError, match="other settings: pipeline was"):
        prepare(people, settings)


def test_a_changed_file_of_petastorm_is_named_by_verifying(people: DataFrame, tmp_path: Path) -> None:
    dataset = prepare(people, Prepare(output=str(tmp_path / "d"), features=["age"], split=NO_SPLIT))
    dataset.verify()
    metadata = Path(dataset.path, "train", "_common_metadata")
    schema = pq.read_schema(metadata)
    pq.write_metadata(
        schema.with_metadata({**schema.metadata, b"dataset-toolkit.unischema.v1": b"cos\nsystem"}), metadata
    )
    with pytest.raises(DatasetError, match="train/_common_metadata was altered"):
        dataset.verify()


@pytest.mark.parametrize("format", ["parquet", "csv", "json", "orc"])
def test_files_of_every_format_of_spark(people: DataFrame, tmp_path: Path, spark: SparkSession, format: str) -> None:
    options: dict[str, str | int | float | bool] = {"header": True, "inferSchema": True} if format == "csv" else {}
    people.select("age", "label").write.format(format).options(**options).save(str(tmp_path / "raw"))
    rows = open_source(Source(format=format, path=str(tmp_path / "raw"), options=options), spark)
    assert sorted(row.age for row in rows.collect()) == sorted(float(i) for i in range(100))


@pytest.mark.parametrize("format", ["parquet", "csv"])
def test_brackets_in_a_path_are_a_name_where_there_is_one_and_a_pattern_elsewhere(
    people: DataFrame, tmp_path: Path, spark: SparkSession, format: str
) -> None:
    for place, rows in {"sales [1] {a}*": people, "sales 1": people.limit(7)}.items():
        rows.select("age", "label").write.format(format).save(str(tmp_path / "written"))
        (tmp_path / "written").rename(tmp_path / place)
    for path, count in {"sales [1] {a}*": 100, "sales [1]": 7, "sales {1,2}": 7}.items():
        assert open_source(Source(format=format, path=str(tmp_path / path)), spark).count() == count


@pytest.mark.parametrize("format", ["csv", "json", "parquet"])
def test_files_that_spark_hides_are_named_where_there_are_no_others(
    tmp_path: Path, spark: SparkSession, format: str
) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "_export.csv").write_text("a,label\n1,0\n")
    (tmp_path / "raw" / "_SUCCESS").touch()
    for path in (tmp_path / "raw", tmp_path / "raw" / "_export.csv"):
        with pytest.raises(
            DataError, match=r"Spark skips files whose names begin with _ or a dot, such as _export\.csv"
        ):
            open_source(Source(format=format, path=str(path)), spark)


def test_tables_and_libsvm(people: DataFrame, tmp_path: Path, spark: SparkSession) -> None:
    people.createOrReplaceTempView("people")
    assert open_source(Source(format="table", path="people"), spark).count() == 100
    (tmp_path / "raw.txt").write_text("".join(f"{-1 if i % 2 else 1} 1:{i} 3:1.5\n" for i in range(20)))
    settings = Prepare(
        output=str(tmp_path / "d"), source=Source(format="libsvm", path=str(tmp_path / "raw.txt")), split=NO_SPLIT
    )
    dataset = prepare(None, settings, spark=spark)
    assert dataset.label_names == ("-1", "1")
    assert dataset.input.shape == (3,)


def test_a_source_is_whatever_spark_reads_also_without_a_path(spark: SparkSession) -> None:
    url = f"jdbc:derby:memory:{uuid.uuid4().hex};create=true"
    spark.range(5).write.format("jdbc").options(url=url, dbtable="numbers").save()
    rows = open_source(Source(format="jdbc", options={"url": url, "dbtable": "numbers"}), spark)
    assert rows.count() == 5


@pytest.mark.parametrize(
    ("format", "reason"),
    [
        ("delta", r"spark-submit --packages io\.delta:delta-spark_2\.1[23]:VERSION"),
        ("avro", r"spark-submit --packages org\.apache\.spark:spark-avro_2\.1[23]:\d"),
        ("parqet", "does not know the format 'parqet': .*; did you mean 'parquet'"),
    ],
)
def test_a_format_that_spark_lacks_is_named_with_the_package_that_brings_it(
    format: str, reason: str, spark: SparkSession, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=reason):
        open_source(Source(format=format, path=str(tmp_path)), spark)
    with pytest.raises(DataError, match=reason):
        write_predictions(spark.range(1).selectExpr("id prediction"), str(tmp_path / "out"), format=format)
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_is_the_drivers(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.csv").write_text("x\n1\n")
    monkeypatch.chdir(tmp_path)
    source = Source(format="CSV", path="rows.csv", options={"header": True})
    assert (source.format, source.path) == ("csv", str(tmp_path / "rows.csv"))
    monkeypatch.chdir("/")
    assert open_source(source, spark).count() == 1


def test_a_folder_of_images_is_decoded_and_resized(tmp_path: Path, spark: SparkSession) -> None:
    for name, colour in {"red": (255, 0, 0), "blue": (0, 0, 255)}.items():
        (tmp_path / "raw" / name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (10 + i, 12), colour).save(tmp_path / "raw" / name / f"{i}.png")
    source = Source(format="images", path=str(tmp_path / "raw"), options={"height": 6, "width": 8})
    dataset = prepare(source, Prepare(output=str(tmp_path / "d"), split=NO_SPLIT), spark=spark)
    assert dataset.label_names == ("blue", "red")
    (batch,) = Loader(dataset, "train", batch_size=8).epoch(0)
    assert batch.inputs.shape == (8, 6, 8, 3)
    assert (batch.inputs[batch.labels == 1].float().mean(dim=(0, 1, 2)) == np.array([255, 0, 0])).all()
    with pytest.raises(ConfigError, match=r"source\.options needs 'height'"):
        open_source(Source(format="images", path=str(tmp_path / "raw")), spark)


def test_images_of_every_name_are_read_and_other_files_are_counted(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "my [raw] {x} *ü"
    names = ["_DSC0001.JPG", ".a.JPeg", "b.WEBP", "c.tif", "d.TIFF", "e.Png", "f 1%20.jpg"]
    for place in ("_red", "blue [1]", ".ipynb_checkpoints", "_red/deep"):
        (root / place).mkdir(parents=True)
        for name in names if place in ("_red", "blue [1]") else names[:1]:
            Image.new("RGB", (6, 6), (255, 0, 0)).save(root / place / name)
    (root / "linked").symlink_to(root / "_red")
    for name in ("_red/notes.txt", "_red/._e.Png", "_red/g.png.part", "beside.png"):
        (root / name).write_text("no image")
    source = Source(format="images", path=str(root), options={"height": 6, "width": 6})
    rows = open_source(source, spark).collect()
    assert Counter(row.label for row in rows) == {"_red": 7, "blue [1]": 7, "linked": 7}
    assert sorted(Path(row.path).name for row in rows if row.label == "_red") == sorted(names)
    assert all(len(row.image) == 6 * 6 * 3 and row[PROBLEM] is None for row in rows)
    # Files below the link to a folder are those of the folder, and are counted again.
    (told,) = [record.getMessage() for record in caplog.records if "were skipped" in record.getMessage()]
    assert (
        "10 files were skipped, because their names are not those of images, or they are not directly in the folder of"
        " a class: " in told
    )
    assert f"{root}/.ipynb_checkpoints/_DSC0001.JPG, {root}/_red/._e.Png, {root}/_red/deep/_DSC0001.JPG" in told
    one_class = source.model_copy(update={"path": str(root / "blue [1]")})
    assert {row.label for row in open_source(one_class, spark).collect()} == {"blue [1]"}


def test_images_of_splits_lie_one_folder_deeper(tmp_path: Path, spark: SparkSession) -> None:
    for place in ("train/cat", "train/dog", "test/cat", "test/dog"):
        (tmp_path / "raw" / place).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (6, 6), (9 * number, 0, 0)).save(tmp_path / "raw" / place / f"{number}.png")
    source = Source(format="images", path=str(tmp_path / "raw"), options={"height": 6, "width": 6})
    with pytest.raises(DataError, match="are deeper than in its sub-folders") as raised:
        open_source(source, spark)
    raw = tmp_path / "raw"
    assert str(raised.value).endswith(
        f"set the parent folder of the classes: `source.path: {raw}/test`, or for splits `source.path: {{test:"
        f" {raw}/test, train: {raw}/train}}`"
    )
    splits = Source(format="images", path={"train": f"{raw}/train", "test": f"{raw}/test"}, options=source.options)
    dataset = prepare(None, Prepare(output=str(tmp_path / "d"), source=splits), spark=spark)
    assert {split: dataset.rows(split) for split in dataset.splits} == {"train": 6, "test": 6}
    (tmp_path / "none" / "cat").mkdir(parents=True)
    (tmp_path / "none" / "cat" / "notes.txt").write_text("no image")
    nothing = source.model_copy(update={"path": str(tmp_path / "none")})
    with pytest.raises(DataError, match=r"there is no image in .*/none \(1 other files\); `images` expects"):
        open_source(nothing, spark)


def test_files_that_are_no_images_are_counted_and_named_or_left_out(
    tmp_path: Path, spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "raw" / "red"
    folder.mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (12, 12), (60 * number, 0, 0)).save(folder / f"{number}.png")
    (folder / "html.jpg").write_text("<!DOCTYPE html><html>Not Found</html>")
    (folder / "cut.png").write_bytes((folder / "0.png").read_bytes()[:48])
    (folder / "gone.png").symlink_to(folder / "nowhere.png")
    damaged = folder / "damaged.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)).save(damaged)
    first, second, *others = damaged.read_bytes().split(b"IDAT")
    damaged.write_bytes(b"IDAT".join([first, second + b"\0\0AT" + others[0], *others[1:]]))
    source = Source(format="images", path=str(tmp_path / "raw"), options={"height": 6, "width": 8})
    settings = Prepare(output=str(tmp_path / "d"), source=source, split=NO_SPLIT)
    with pytest.raises(DataError) as raised:
        prepare(None, settings, spark=spark)
    message = str(raised.value)
    kinds = "an image that cannot be decoded: 2; cannot be read: 1; no image: 1"
    assert message.startswith(f"4 files cannot be used ({kinds}). The first: {folder}/cut.png: an image that cannot be")
    assert f"{folder}/html.jpg: no image (it begins with b'<!DOCTYPE html><')" in message and "\n" not in message
    dataset = prepare(None, settings.model_copy(update={"on_bad_rows": "skip"}), spark=spark)
    assert dataset.rows("train") == 4
    assert f"skipped: 4 files cannot be used ({kinds})" in caplog.text


def test_a_split_that_was_asked_for_has_rows_or_is_an_error_before_anything_is_written(
    people: DataFrame, tmp_path: Path
) -> None:
    found = set()
    for seed in range(6):  # of which some choose no row of six, and others enough
        settings = Prepare(
            output=str(tmp_path / str(seed)),
            features=["age"],
            split=Split(fractions={"validation": 0.2}),
            seed=seed,
            num_ranks=1,
        )
        try:
            found.add(prepare(people.where("id < 12 and id % 2 = 0"), settings).rows("validation") > 0)
        except DataError as error:
            assert "split 'validation' has 0 of 6 rows" in str(error) and "another share or `seed`" in str(error)
            assert not (tmp_path / str(seed)).exists()
            found.add(False)
    assert found == {True, False}


def test_labels_may_be_numbers_of_any_length(people: DataFrame, tmp_path: Path) -> None:
    rows = people.withColumn("label", sf.expr("concat(case when id % 2 = 0 then '-' else '' end, repeat('9', 5000))"))
    settings = Prepare(output=str(tmp_path / "d"), features=["age"], split=NO_SPLIT)
    assert prepare(rows, settings).label_names == ("-" + "9" * 5000, "9" * 5000)


@pytest.mark.parametrize("format", ["parquet", "csv", "json", "orc", "table", "libsvm", "idx", "images"])
def test_a_source_that_does_not_exist_is_named(spark: SparkSession, tmp_path: Path, format: str) -> None:
    path = "no_such_table" if format == "table" else str(tmp_path / "nowhere")
    options: dict[str, str | int | float | bool] = {"height": 2, "width": 2} if format == "images" else {}
    with pytest.raises(DataError, match=path):
        open_source(Source(format=format, path=path, options=options), spark)


def test_an_empty_source_is_refused(people: DataFrame, spark: SparkSession, tmp_path: Path) -> None:
    people.limit(0).write.parquet(str(tmp_path / "raw"))
    with pytest.raises(DataError, match="is empty; there is nothing to learn from"):
        open_source(Source(format="parquet", path=str(tmp_path / "raw")), spark)
    with pytest.raises(DataError, match="there are no rows to prepare"):
        prepare(people.limit(0), Prepare(output=str(tmp_path / "d"), features=["age"]))


IMPUTE_X = [Stage(kind="impute", columns=["x"])]
TEXT_X = [Stage(kind="hash_text", columns=["x"])]


@pytest.mark.parametrize(
    ("change", "settings", "message"),
    [
        ({}, {"label": "species"}, "no column 'species'; the source has id, age"),
        ({}, {"features": ["age", "weight"]}, "no column 'weight'; the source has id, age"),
        ({}, {"features": ["colour"]}, "column 'colour' is of type string"),
        ({}, {"features": ["fare"]}, "column 'fare' has 10 rows that are null or NaN"),
        ({"age": "if(id < 3, double('NaN'), age)"}, {}, "column 'age' has 3 rows that are null or NaN"),
        ({"label": "if(id < 4, null, label)"}, {}, "label column 'label' is null in 4 rows"),
        (
            {"label": "id / 2"},
            {"task": "classification"},
            "label column 'label' has 50 rows that are not whole numbers .*; bin them first, set `task",
        ),
        (
            {"label": "timestamp'2026-01-01'"},
            {},
            "label column 'label' is timestamp, which fits no task: classification needs",
        ),
        (
            {"label": "date'2026-01-01'"},
            {"task": "regression"},
            "label column 'label' is date, but regression predicts",
        ),
        ({}, {"task": "regression"}, "label column 'label' is string, but regression predicts a number"),
        ({}, {"task": "multi_label"}, "label column 'label' is string, but multi_label needs arrays of labels"),
        (
            {"label": "if(id < 2, double('inf'), age / 7)"},
            {"task": "regression"},
            "'label' is NaN or infinite in 2 rows",
        ),
        ({"w": "age - 5"}, {"weight": "w"}, "weight column 'w' is negative, infinite or null in 5 rows"),
        ({"w": "0.0D"}, {"weight": "w"}, "all rows of the split 'train' have the weight 0"),
        ({"w": "text"}, {"weight": "w"}, "weight column 'w' is string; weights are numbers"),
        (
            {"label": "if(id = 99, 'rare', label)"},
            {"split": Split(column="part", fractions={})},
            "1 rows of split 'test'",
        ),
        ({"part": "'../x'"}, {"split": Split(column="part", fractions={})}, "is not a valid name of a split"),
        (
            {"part": "if(id < 1, 'test', 'train')"},
            {"split": Split(column="part")},
            "split 'test' has 1 of 100 rows, fewer than the 2",
        ),
        ({"part": "'test'"}, {"split": Split(column="part")}, "no row is in the split 'train'"),
        ({"x": "double('inf')"}, {"features": ["x"]}, "column 'x' has 100 rows that are infinite"),
        (
            {"x": "if(id < 3, double('-inf'), fare)"},
            {"features": ["x"], "stages": IMPUTE_X},
            "3 rows that are infinite",
        ),
        ({"x": "array(1.0, double('inf'))"}, {"features": ["x"]}, "column 'x' has 100 rows that are infinite"),
        ({"x": "1e300D"}, {"features": ["x"]}, "column 'x' has 100 rows that are infinite or beyond float32"),
        ({"x": "if(id = 50, array(1), array(1, 2))"}, {"features": ["x"]}, "1 arrays that are not 2 wide"),
        (
            {"x": "if(id = 50, null, text)"},
            {"features": ["x"], "stages": TEXT_X},
            r"'x' has 1 rows that are null or NaN \(the first: id = 50, .*drop these rows, or set `on_bad_rows: skip`",
        ),
        (
            {"x": "text"},
            {"features": ["x"], "stages": IMPUTE_X + TEXT_X},
            "of type string, and `impute` is for numbers",
        ),
        ({"__SPARKDL_x": "age"}, {"features": ["__SPARKDL_x"]}, "'__SPARKDL_x' begins with __sparkdl_, .* rename it"),
        ({"a{0}b": "if(id < 3, null, age)"}, {"features": ["a{0}b"]}, r"column 'a\{0\}b' has 3 rows that are null"),
        ({"x": "array(1.0, double(null))"}, {"features": ["x"]}, "column 'x' has 100 rows that are null or NaN"),
        ({"image": "binary('abcd')"}, {"image": "image"}, "the size of the images in 'image' is not known"),
        (
            {"image": "binary('abc')"},
            {"image": "image", "image_shape": [2, 2]},
            "100 images that are not 2 x 2 x 1 bytes",
        ),
    ],
)
def test_rows_that_cannot_become_a_dataset(
    people: DataFrame, tmp_path: Path, change: dict[str, str], settings: dict[str, object], message: str
) -> None:
    rows = people.withColumn("part", sf.expr("if(id < 90, 'train', 'test')"))
    for column, expression in change.items():
        rows = rows.withColumn(column, sf.expr(expression))
    values = {"output": str(tmp_path / "d"), "split": NO_SPLIT}
    values |= {} if "image" in settings else {"features": ["age"]}
    with pytest.raises(DataError, match=message):
        prepare(rows, Prepare.model_validate(values | settings))
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_cannot_be_written_is_found_before_reading(people: DataFrame, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="cannot write to"):
        prepare(people, Prepare(output=str(tmp_path / "file" / "d"), label="no such column"))


def test_the_card_is_plain_json_that_says_what_is_in_the_dataset(digits_dataset: Dataset) -> None:
    card = json.loads(Path(digits_dataset.path, "card.json").read_text())
    assert card["digest"] == digits_dataset.digest
    split = {"column": "split", "time": None, "fractions": {"validation": 0.2}, "stratify": False, "group": []}
    assert (card["settings"]["split"], card["split_by"]) == (split, "row")
    assert set(card["splits"]["train"]) == {"num_rows", "num_groups", "class_counts", "sparse", "metadata_sha256"}
    assert set(card["row_groups"]) == {"bytes", "sha256"}


def test_places_may_have_any_name(people: DataFrame, tmp_path: Path, spark: SparkSession) -> None:
    place = tmp_path / "Meine Läufe=%20"
    people.select("age", "label").write.csv(str(place / "raw"), header=True)
    source = Source(format="csv", path=f"{place}/raw/*.csv", options={"header": True, "inferSchema": True})
    settings = Prepare(source=source, output=str(place / "prepared"), split=NO_SPLIT)
    dataset = prepare(None, settings, spark=spark)
    assert dataset.rows("train") == 100
    assert sorted(path.name for path in place.iterdir()) == ["prepared", "raw"]
    assert [path.name for path in tmp_path.iterdir()] == [place.name]
    assert dataset.preprocessing_path and read_pipeline(Path(dataset.preprocessing_path))


def test_vectors_of_a_width_that_nobody_tells_are_standardised_and_assembled(
    people: DataFrame, tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "rows").write_text("".join(f"{i % 2} 1:{i} 3:{i % 5}\n" for i in range(1, 41)))
    libsvm = Source(format="libsvm", path=str(tmp_path / "rows"))
    stages = [Stage(kind="standardise", columns=["features"])]
    settings = Prepare(source=libsvm, output=str(tmp_path / "a"), split=NO_SPLIT, stages=stages)
    assert prepare(None, settings, spark=spark).input.shape == (3,)
    beside = people.withColumn("vector", array_to_vector(sf.array("age", "age")))
    both = Prepare(output=str(tmp_path / "b"), features=["age", "vector"], split=NO_SPLIT)
    dataset = prepare(beside, both)
    assert dataset.input.shape == (3,)
    again = as_matrix(made_again(dataset, beside))
    assert set(map(tuple, again.tolist())) == {(float(i),) * 3 for i in range(100)}


def test_images_of_as_many_bytes_but_another_shape_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    shape = "if(id % 4 = 1, 2, 3)", "if(id % 4 = 1, 3, 2)"
    rows = spark.range(8).selectExpr(
        f"named_struct('height', {shape[0]}, 'width', {shape[1]}, 'nChannels', 1, 'data', cast('sixsix' as binary))"
        " as image",
        "id % 2 as label",
    )
    settings = Prepare(output=str(tmp_path / "d"), image="image", image_shape=(3, 2, 1), split=NO_SPLIT)
    with pytest.raises(DataError, match="2 images that are not 3 x 2 x 1"):
        prepare(rows, settings)


def test_the_label_may_have_the_name_that_spark_gives_indices(people: DataFrame, tmp_path: Path) -> None:
    rows = people.withColumnRenamed("label", "label_index")
    settings = Prepare(output=str(tmp_path / "d"), label="label_index", features=["age"], split=NO_SPLIT)
    assert prepare(rows, settings).rows("train") == 100


def test_a_pipeline_that_is_missing_or_altered_is_named(people: DataFrame, tmp_path: Path) -> None:
    settings = Prepare(output=str(tmp_path / "d"), features=["age"], split=NO_SPLIT)
    dataset = prepare(people, settings)
    stages = Path(str(dataset.preprocessing_path), STAGES_FILE)
    stages.write_text(stages.read_text().replace("Assemble", "SomethingElse"))
    for look in (dataset.verify, lambda: Dataset.open(dataset.path), lambda: prepare(people, settings)):
        with pytest.raises(DatasetError, match="preprocessing was altered"):
            look()
    shutil.rmtree(str(dataset.preprocessing_path))
    with pytest.raises(DatasetError, match="preprocessing is missing"):
        Dataset.open(dataset.path)


def test_every_broken_file_of_a_folder_is_named_by_itself(tmp_path: Path, spark: SparkSession) -> None:
    source, settings = Source(format="idx", path=str(tmp_path)), Prepare(output=str(tmp_path / "d"), split=NO_SPLIT)
    for prefix in ("train", "t10k"):
        write_idx(tmp_path, prefix, np.zeros((4, 2, 2), np.uint8), np.array([0, 1, 0, 1], np.uint8))
    broken = {
        "t10k-labels-idx1-ubyte.gz": (b"\0\0\x08\1" + b"\0" * 3, "ends too early; download it again"),
        "t10k-images-idx3-ubyte.gz": (b"<html>not found</html>", "is not an IDX file of unsigned bytes"),
        "train-labels-idx1-ubyte.gz": (
            gzip.compress(b"\0\0\x08\1\0\0\0\4\0\1\0\1\0"),
            "is longer than its header says",
        ),
    }
    for name, (content, words) in broken.items():  # each beside those before it, which were mended
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=f"^{tmp_path / name} {words}"):
            prepare(source, settings, spark=spark)
        (tmp_path / name).write_bytes(whole)
    for name, (content, _) in list(broken.items())[:2]:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte\.gz is not an IDX file"):
        prepare(source, settings, spark=spark)
    assert not (tmp_path / "d").exists()


def test_an_altered_byte_of_a_packed_file_is_found(tmp_path: Path, spark: SparkSession) -> None:
    random = np.random.default_rng(0)
    write_idx(tmp_path / "raw", "train", random.integers(0, 256, (40, 4, 5), np.uint8), np.arange(40, dtype=np.uint8))
    packed = tmp_path / "raw" / "train-images-idx3-ubyte.gz"
    content = packed.read_bytes()
    settings = Prepare(output=str(tmp_path / "d"), split=NO_SPLIT)
    for place in (len(content) // 2, len(content) - 6):  # of the pixels, and of the checksum at the end
        packed.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(DataError, match=f"{packed.name} (was altered|cannot be unpacked|ends too early)"):
            prepare(Source(format="idx", path=str(tmp_path / "raw")), settings, spark=spark)


def test_a_place_that_petastorm_would_misread_is_refused(people: DataFrame, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="choose another `output`"):
        prepare(people, Prepare(output=str(tmp_path / "run#1" / "d"), features=["age"], split=NO_SPLIT))
    assert list(tmp_path.iterdir()) == []


def test_a_copy_without_hidden_files_is_the_same_dataset(people: DataFrame, tmp_path: Path) -> None:
    dataset = prepare(people, Prepare(output=str(tmp_path / "d"), features=["age"], split=NO_SPLIT))
    shutil.copytree(dataset.path, tmp_path / "copy", ignore=shutil.ignore_patterns(".*", "_*"))
    copy = Dataset.open(str(tmp_path / "copy"))
    copy.verify()
    assert copy.digest == dataset.digest


def wrong_in(expressions: dict[int, str], column: str) -> str:
    """SQL for a column that has these values in the rows with these ids."""
    cases = " ".join(f"when id = {row} then {value}" for row, value in expressions.items())
    return f"case {cases} else {column} end"


def test_rows_with_anything_wrong_are_counted_and_named_or_left_out(
    people: DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = {1: "double('NaN')", 2: "double('-inf')", 3: "1e39D", 4: "null"}
    pairs = {5: "array(double('NaN'), 1)", 6: "array(1, double('inf'))", 7: "array(-1e300D, 1)", 8: "array(1D)"}
    rows = (
        people.withColumn("x", sf.expr(wrong_in(numbers, "age")))
        .withColumn("pair", array_to_vector(sf.expr(wrong_in(pairs, "array(age, age)"))))
        .withColumn("text", sf.expr(wrong_in({9: "null"}, "text")))
        .withColumn("label", sf.expr(wrong_in({10: "null"}, "label")))
        .withColumn("part", sf.expr(wrong_in({11: "null"}, "if(id < 90, 'train', 'test')")))
        .withColumn("label", sf.expr(wrong_in({98: "'rare'", 99: "'rarer'"}, "label")))
        .withColumn("w", sf.expr(wrong_in({12: "-1"}, "1")))
        .select("id", "x", "pair", "text", "label", "part", "w")
    )
    settings = Prepare(
        output=str(tmp_path / "d"),
        features=["x", "pair", "text"],
        stages=[Stage(kind="hash_text", columns=["text"], dimensions=8)],
        split=Split(column="part"),
        weight="w",
    )
    with pytest.raises(DataError) as raised:
        prepare(rows, settings)
    message = str(raised.value)
    assert message.startswith("the label column 'label' is null in 1 rows (the first: id = 10, x = 10.0, text = 'word2")
    assert "; drop or label them, or set `on_bad_rows: skip`. Besides: the weight column 'w' is negative" in message
    assert message.endswith("and 5 more kinds") and "\n" not in message
    with caplog.at_level("WARNING", logger="sparkdl"):
        dataset = prepare(rows, settings.model_copy(update={"on_bad_rows": "skip"}))
    assert {split: dataset.rows(split) for split in dataset.splits} == {"train": 78, "test": 8}
    told = [record.getMessage() for record in caplog.records if "skipped" in record.getMessage()]
    assert [text.partition("skipped: ")[2].partition(" (the first")[0] for text in told] == [
        "the label column 'label' is null in 1 rows",
        "the weight column 'w' is negative, infinite or null in 1 rows",
        "column 'x' has 2 rows that are null or NaN",
        "column 'x' has 2 rows that are infinite or beyond float32, which ends at 3.4e38",
        "column 'pair' has 1 rows that are null or NaN",
        "column 'pair' has 2 rows that are infinite or beyond float32, which ends at 3.4e38",
        "column 'pair' has 1 vectors that are not 2 wide, as most are",
        "column 'text' has 1 rows that are null or NaN",
        "the split column 'part' is null in 1 rows",
        "2 rows of split 'test' have labels that the training split does not have (2: 'rare', 'rarer')",
    ]
    assert "(the first: id = 2, x = -inf, text = 'word2 and more', label = 'class0'; id = 3, x = 1e+39" in told[3]


def test_what_preprocessing_makes_infinite_is_a_bad_row_too(
    people: DataFrame, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logarithm = SQLTransformer(statement="SELECT *, log(age - 3) AS log_age FROM __THIS__")
    assembler = VectorAssembler(inputCols=["log_age"], outputCol="features", handleInvalid="keep")
    settings = Prepare(output=str(tmp_path / "d"), features=["age"], split=NO_SPLIT)
    with pytest.raises(DataError, match=r"has 4 rows with values .* after preprocessing \(the first: id = 0, age = 0"):
        prepare(people, settings, pipeline=Pipeline(stages=[logarithm, assembler]))
    assert list(tmp_path.iterdir()) == []
    skipping = settings.model_copy(update={"on_bad_rows": "skip"})
    for _ in range(2):  # what is there is recognised
        dataset = prepare(people, skipping, pipeline=Pipeline(stages=[logarithm, assembler]))
        assert (dataset.rows("train"), dataset.card.label_type) == (96, "string")
    assert "column 'features' has 4 rows with values that are NaN or infinite after preprocessing" in caplog.text


def test_bad_arrays_are_skipped_where_that_is_asked_for(people: DataFrame, tmp_path: Path) -> None:
    bad = {1: "array(double('NaN'), 0)", 3: "array(double('inf'), 0)", 5: "array(0D)", 7: "array(1e39D, 0)", 9: "null"}
    rows = people.withColumn("x", sf.expr(wrong_in(bad, "array(age, fare)"))).coalesce(1)
    settings = Prepare(output=str(tmp_path / "d"), features=["x"], split=NO_SPLIT, on_bad_rows="skip")
    assert prepare(rows.where("fare is not null"), settings).rows("train") == 90 - 5


def test_a_row_that_is_not_like_most_is_the_bad_one_though_it_comes_first(people: DataFrame, tmp_path: Path) -> None:
    rows = people.withColumn("x", sf.expr("if(id < 2, array(), if(id < 5, array(9), array(age, age)))")).coalesce(1)
    settings = Prepare(output=str(tmp_path / "d"), features=["x"], split=NO_SPLIT, on_bad_rows="skip")
    dataset = prepare(rows.orderBy("id"), settings)
    assert (dataset.input.shape, dataset.rows("train")) == ((2,), 95)


def test_images_without_the_size_of_most_are_skipped_where_that_is_asked_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    image = (
        "named_struct('height', if(id = 3, 2, 3), 'width', if(id = 3, 3, 2), 'nChannels', 1, 'data', binary('sixsix'))"
    )
    rows = spark.range(8).selectExpr(f"if(id = 0, null, {image}) as image", "id % 2 as label").coalesce(1)
    settings = Prepare(output=str(tmp_path / "d"), image="image", split=NO_SPLIT, on_bad_rows="skip")
    dataset = prepare(rows, settings)
    assert (dataset.input.shape, dataset.rows("train")) == ((3, 2, 1), 6)


def test_bad_rows_of_wide_tables_are_found(spark: SparkSession, tmp_path: Path) -> None:
    names = [f"x{number}" for number in range(700)]
    values = np.ones((4, len(names)))
    values[2, 600] = np.inf
    columns = {name: values[:, place] for place, name in enumerate(names)} | {"label": ["a"] * 4, LABEL: ["a"] * 4}
    pq.write_table(pa.table(columns), tmp_path / "wide.parquet")
    rows = spark.read.parquet(str(tmp_path / "wide.parquet"))
    settings = Prepare(output="unused", features=names)
    problems = find_problems(rows, choose_inputs(rows, settings), settings, "classification")
    (wrong,) = rows.withColumn(WRONG, what_is_wrong(problems)).where(f"{WRONG} > 0").collect()
    assert "'x600'" in problems[wrong[WRONG] - 1].says


def test_batches_without_a_limit_are_written(people: DataFrame, tmp_path: Path, spark: SparkSession) -> None:
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    try:
        for limit in ("0", "-1"):
            spark.conf.set(key, limit)  # an empty partition is then an empty batch
            settings = Prepare(output=str(tmp_path / limit), features=["age"], split=NO_SPLIT)
            assert prepare(people, settings).rows("train") == 100
            assert spark.conf.get(key) == limit
    finally:
        spark.conf.set(key, before)


WORKED_WITH = ["_label", "_class", "_split", "_order", "_group", "_place", "_content", "_bucket", "_problem", "_stage0"]


def test_no_name_of_a_raw_column_is_taken_by_what_is_worked_with(people: DataFrame, tmp_path: Path) -> None:
    names = [*WORKED_WITH, "_stage0_0", "_begin", "features", "features_assembled", "features_unscaled", "split"]
    numbers = [(sf.col("id") * (number + 1) + number).alias(name) for number, name in enumerate(names)]
    rows = people.select("label", *numbers)
    settings = Prepare(
        output=str(tmp_path / "d"),
        features=names,
        stages=[Stage(kind="impute", columns=["_label"]), Stage(kind="index", columns=["_class"])],
        split=Split(fractions={"validation": 0.3}),
    )
    dataset = prepare(rows, settings)
    found = [np.frombuffer(row, np.float32) for split in dataset.splits for row, _ in contents(dataset, split)]
    assert len(found) == 100
    scale = np.arange(len(names)) + 1
    as_numbered = [np.delete((row - scale + 1) / scale, names.index("_class")) for row in found]
    assert sorted(row[0] for row in as_numbered) == list(range(100))
    assert all(np.allclose(row, row[0]) for row in as_numbered)


NAMES = ["sepal.length", "a`b", "a b", "ü.`x` y", "'quoted'", "{count}"]


def test_columns_of_any_name_become_inputs_and_are_scored_the_same(people: DataFrame, tmp_path: Path) -> None:
    values = [(sf.col("id") * (number + 1)).cast("double").alias(name) for number, name in enumerate(NAMES)]
    rows = people.select(sf.col("label").alias("my.`label`"), sf.col("text").alias("a.text"), *values)
    rows = rows.withColumn("part of.all", sf.lit("train"))
    settings = Prepare(
        output=str(tmp_path / "d"),
        label="my.`label`",
        split=Split(column="part of.all"),
        stages=[
            Stage(kind="impute", columns=["sepal.length", "a b"]),
            Stage(kind="hash_text", columns=["a.text"], dimensions=4),
        ],
    )
    dataset = prepare(rows, settings)
    assert list(dataset.raw_columns) == ["a.text", *NAMES]
    card = ModelCard.model_validate_json(dataset.card_json)
    as_scored = raw_inputs(rows, card, Path(dataset.path))
    scored = Counter(np.array(row, np.float32).tobytes() for row, _ in as_scored)
    assert scored == Counter(row for row, _ in contents(dataset, "train").elements())
    nothing = rows.withColumn("a.text", sf.lit(None).cast("string"))
    (refused,) = {reason for _, reason in raw_inputs(nothing, card, Path(dataset.path))}
    assert refused == "column 'a.text' is null"


@pytest.mark.parametrize("name", ["my.pixels", "my `pixels`", "_pixels", "Label", "class"])
def test_an_array_of_any_name_is_stored_under_one_that_a_row_can_have_and_scored(
    people: DataFrame, tmp_path: Path, name: str
) -> None:
    rows = people.select(sf.array("age", "age").alias(name), sf.col("colour").alias("kind"))
    dataset = prepare(rows, Prepare(output=str(tmp_path / "d"), label="kind", split=NO_SPLIT))
    assert dataset.raw_columns == {name: "array<double>"}
    assert dataset.input.column == "features"
    card = ModelCard.model_validate_json(dataset.card_json)
    as_scored = raw_inputs(rows, card, Path(dataset.path))
    scored = Counter(np.array(row, np.float32).tobytes() for row, _ in as_scored)
    assert scored == Counter(row for row, _ in contents(dataset, "train").elements())


def test_what_a_pipeline_of_the_user_does_not_read_may_have_any_name(people: DataFrame, tmp_path: Path) -> None:
    rows = people.withColumn("meta.id", sf.col("id"))
    pipeline = Pipeline(stages=[VectorAssembler(inputCols=["age", "id"], outputCol="features")])
    settings = Prepare(output=str(tmp_path / "d"), split=NO_SPLIT)
    assert prepare(rows, settings, pipeline=pipeline).input.shape == (2,)


def test_a_column_may_be_named_like_the_result_in_capitals(people: DataFrame, tmp_path: Path) -> None:
    rows = people.withColumnRenamed("age", "Features")
    settings = Prepare(output=str(tmp_path / "d"), features=["Features", "id"], split=NO_SPLIT)
    assert prepare(rows, settings).input.shape == (2,)


def test_what_csv_files_do_not_say_by_themselves_is_named(people: DataFrame, tmp_path: Path) -> None:
    people.select("age", "label").write.csv(str(tmp_path / "raw"), header=True)
    source = Source(format="csv", path=str(tmp_path / "raw"))
    settings = Prepare(output=str(tmp_path / "d"), source=source, split=NO_SPLIT)
    with pytest.raises(DataError, match=r"no column 'label'; .* set `source.options: {header: true}`"):
        prepare(None, settings)
    source = Source(format="csv", path=str(tmp_path / "raw"), options={"header": True})
    with pytest.raises(DataError, match=r"'age' is of type string, .* text without `inferSchema: true`"):
        prepare(None, settings.model_copy(update={"source": source}))


def test_vectors_of_several_widths_are_counted(people: DataFrame, tmp_path: Path) -> None:
    rows = people.withColumn(
        "vector", array_to_vector(sf.expr("if(id between 5 and 7, array(age), array(age, age))"))
    ).coalesce(1)
    settings = Prepare(output=str(tmp_path / "d"), features=["age", "vector"], split=NO_SPLIT)
    with pytest.raises(DataError, match="column 'vector' has 3 vectors that are not 2 wide"):
        prepare(rows, settings)
