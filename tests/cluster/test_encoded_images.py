"""Images that lie in a column as files: from ``binaryFile`` to a dataset, to a model, and to predictions."""

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import mlflow.pyfunc
import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkdl.data import Dataset, open_source, prepare, split_rows
from sparkdl.data.model_inputs import example_row, keep_inputs, packages_for_inputs
from sparkdl.data.preparing import look
from sparkdl.data.preparing.decoding import decoded
from sparkdl.data.reading.loader import Loader
from sparkdl.errors import DataError
from sparkdl.models import NETWORK_FILE, build, export_network
from sparkdl.preprocessing.decode_image import decode_image
from sparkdl.scoring.dataframe import score
from sparkdl.scoring.output import write_predictions
from sparkdl.settings import Prepare, Source, Split, Tracking
from sparkdl.tracking import download, start_run

SHAPE = (8, 6, 3)
KINDS = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP", "gif": "GIF", "bmp": "BMP"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of all kinds and sizes in folders that name their label, one of them lying on its side."""
    folder, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(60):
        label, (ending, kind) = ("cat", "dog")[number % 2], list(KINDS.items())[number % len(KINDS)]
        (folder / f"label={label}").mkdir(exist_ok=True)
        height, width = random.integers(5, 30, 2)
        picture = Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8))
        exif = Image.Exif()
        exif[0x0112] = 6
        options = {"exif": exif} if kind == "JPEG" else {}
        picture.save(folder / f"label={label}" / f"{number:02}.{ending}", kind, **options)
    return folder


@pytest.fixture(scope="module")
def settings(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Prepare:
    return Prepare(
        output=str(tmp_path_factory.mktemp("prepared") / "files"),
        source=Source(format="binaryFile", path=str(folder)),
        features=["content"],
        image_shape=list(SHAPE),
        split=Split(fractions={"test": 0.3}),
    )


@pytest.fixture(scope="module")
def files(settings: Prepare, spark: SparkSession) -> DataFrame:
    assert settings.source is not None
    return open_source(settings.source, spark)


@pytest.fixture(scope="module")
def dataset(settings: Prepare, spark: SparkSession) -> Dataset:
    return prepare(None, settings, spark=spark)


def contents(dataset: Dataset, *splits: str) -> Counter[bytes]:
    batches = [batch for split in splits for batch in Loader(dataset, split, batch_size=64).epoch(0)]
    return Counter(row.numpy().tobytes() for batch in batches for row in batch.inputs)


def as_images(spark: SparkSession, folder: Path, shape: tuple[int, ...] = SHAPE) -> DataFrame:
    """What the project's own reader of image files makes of them."""
    options: dict[str, str | int | float | bool] = {"height": shape[0], "width": shape[1]}
    return open_source(Source(format="images", path=str(folder), options=options), spark)


def test_a_column_of_files_has_the_pixels_that_a_folder_of_images_has(
    spark: SparkSession, folder: Path, dataset: Dataset
) -> None:
    assert (dataset.input.column, dataset.input.shape, dataset.label_names) == ("content", SHAPE, ("cat", "dog"))
    assert dataset.raw_columns == {"content": "binary"}
    expected = Counter(bytes(row.image) for row in as_images(spark, folder).select("image").collect())
    assert contents(dataset, "train", "test") == expected and expected.total() == 60


def test_a_split_is_of_files_whatever_size_they_become_and_however_spark_has_parted_them(
    spark: SparkSession, files: DataFrame, settings: Prepare, dataset: Dataset, tmp_path: Path
) -> None:
    parted = prepare(files.repartition(7), settings.model_copy(update={"output": str(tmp_path / "parted")}))
    assert parted.digest == dataset.digest
    grey = settings.model_copy(update={"output": str(tmp_path / "grey"), "image_shape": [4, 4]})
    found = contents(prepare(files, grey), "test")
    for_testing = [bytes(row.content) for row in split_rows(files, settings, "test").collect()]
    assert found == Counter(decode_image(content, (4, 4, 1)).tobytes() for content in for_testing)
    assert found.total() == dataset.rows("test") > 0


def test_rows_without_a_picture_are_counted_and_named_by_their_path_or_left_out(
    spark: SparkSession,
    folder: Path,
    files: DataFrame,
    settings: Prepare,
    dataset: Dataset,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    large = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(large, "PNG")
    rows = [
        ("page.jpg", b"<html>"),
        ("empty.jpg", b""),
        ("cut.jpg", (folder / "label=cat" / "00.jpg").read_bytes()[:400]),
        ("large.png", large.getvalue()),
        ("null.jpg", None),
    ]
    bad = spark.createDataFrame([(*row, "dog") for row in rows], "path string, content binary, label string")
    every = files.unionByName(bad, allowMissingColumns=True)
    settings = settings.model_copy(update={"output": str(tmp_path / "d")})
    with pytest.raises(DataError) as raised:
        prepare(every, settings)
    told = str(raised.value)
    first = (
        "column 'content' has 2 rows with no image (a file of one, or 8 x 6 x 3 bytes) (the first: path = 'empty.jpg'"
    )
    assert told.startswith(first) and "repair or drop them, or set `on_bad_rows: skip`. Besides: " in told
    assert "1 rows with an image of too many pixels (the first: path = 'large.png'" in told
    assert "1 rows with an image that cannot be decoded (the first: path = 'cut.jpg'" in told
    assert "column 'content' has 1 rows without an image (the first: path = 'null.jpg'" in told and "\n" not in told
    left = prepare(every, settings.model_copy(update={"on_bad_rows": "skip"}))
    for split in ("train", "test"):
        assert contents(left, split) == contents(dataset, split)
    assert caplog.text.count("skipped: column 'content' has") == 4


def test_raw_pixels_stay_so_beside_files_and_a_file_of_as_many_bytes_is_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    content = io.BytesIO()
    Image.new("RGB", (5, 5), (0, 200, 0)).save(content, "PNG")
    file, size = content.getvalue(), len(content.getvalue())
    raw = bytes(range(size))
    rows = spark.createDataFrame([(file, "a"), (raw, "b"), (raw, "b")] * 2, "image binary, label string")
    settings = Prepare(
        output=str(tmp_path / "d"), image="image", image_shape=[1, size], split=Split(fractions={}), num_ranks=1
    )
    found = contents(prepare(rows, settings), "train")
    assert found == Counter({decode_image(file, (1, size, 1)).tobytes(): 2, raw: 4})


def test_a_size_that_is_not_known_and_channels_that_files_do_not_become_are_told(
    files: DataFrame, settings: Prepare, tmp_path: Path
) -> None:
    unknown = settings.model_copy(update={"output": str(tmp_path / "d"), "image_shape": None})
    with pytest.raises(DataError, match=r"images in 'content' is not known; set `image_shape` .* are resized to it"):
        prepare(files, unknown)
    with pytest.raises(DataError, match=r"column 'content' has encoded images, .* to 1 channel or to 3, not to 4"):
        prepare(files, unknown.model_copy(update={"image_shape": [8, 6, 4]}))


def test_a_task_is_handed_as_many_files_as_there_is_room_for(
    files: DataFrame, settings: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            assert len(batch) <= 2
            yield batch

    monkeypatch.setattr(look, "FILE_BYTES", 1 << 25)  # with which 64 MiB have room for two
    monkeypatch.setattr(look, "decoded", lambda rows, *of: decoded(rows.mapInArrow(counted, rows.schema), *of))
    assert prepare(files.coalesce(1), settings.model_copy(update={"output": str(tmp_path / "d")})).rows("train") > 30


def test_a_model_of_images_scores_files(
    spark: SparkSession, files: DataFrame, dataset: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    keep_inputs(dataset, tmp_path / "model")
    torch.manual_seed(0)
    network = build("cnn", input_shape=SHAPE, num_classes=2)
    export_network(network, tmp_path / "model" / NETWORK_FILE, torch.zeros(1, *SHAPE, dtype=torch.uint8))
    assert packages_for_inputs(tmp_path / "model") == ["pillow"]
    tracking = Tracking(uri=f"sqlite:///{tmp_path}/mlflow.db", register_as="pictures")
    with start_run(tracking, params={}) as run:
        uri = run.log_model(
            tmp_path / "model",
            inputs=dataset.raw_columns,
            example=example_row(dataset),
            requirements=packages_for_inputs(tmp_path / "model"),
        )
    bad = spark.createDataFrame([("page.jpg", b"<html>")], "path string, content binary")
    rows = files.unionByName(bad, allowMissingColumns=True).select("path", "content")
    with pytest.raises(DataError, match=r"path = 'page.jpg'.*: column 'content': no image \(6 bytes, not the 144 of"):
        write_predictions(score(rows, uri, tracking=tracking), str(tmp_path / "failed"))
    found = {row.path: row for row in score(rows, uri, tracking=tracking, on_error="null").collect()}
    assert found["page.jpg"].prediction is None and found["page.jpg"].error.startswith("column 'content': no image (6")

    @sf.udf("binary")
    def as_pixels(content: bytes) -> bytes:
        return decode_image(content, SHAPE).tobytes()

    raw = files.select("path", as_pixels("content").alias("content"))
    expected = {row.path: row for row in score(raw, uri, tracking=tracking).collect()}
    assert len(expected) == 60
    for path, row in expected.items():
        assert (found[path].prediction, found[path].probability) == (row.prediction, pytest.approx(row.probability))
    pyfunc = mlflow.pyfunc.load_model(str(download(uri, tracking).parent.parent))
    frame = files.select("path", "content").toPandas()
    answered = pyfunc.predict(frame[["content"]].map(bytes))
    assert list(answered["prediction"]) == [expected[path].prediction for path in frame["path"]]
