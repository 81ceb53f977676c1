"""Stock Petastorm opens what ``prepare`` writes without Petastorm's code, and sees the same rows."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from petastorm import make_batch_reader, make_reader
from pyspark.ml.linalg import Vectors
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkdl.data import Dataset, prepare
from sparkdl.data.reading.loader import Loader
from sparkdl.data.reading.sparse import SparseLoader
from sparkdl.settings import Prepare, Split

ROWS = 90
SETTINGS = {"split": Split(fractions={}), "rows_per_group": 20}


def images(spark: SparkSession) -> DataFrame:
    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, 6), dtype=np.uint8)
    return spark.createDataFrame([(bytearray(row), i % 3) for i, row in enumerate(pixels)], "image binary, label int")


def vectors(spark: SparkSession) -> DataFrame:
    return spark.range(ROWS).select(
        sf.transform(sf.sequence(sf.lit(0), sf.lit(6)), lambda i: (sf.col("id") * 7 + i).cast("float")).alias("x"),
        (sf.col("id") % 3).cast("double").alias("label"),
    )


def sparse_rows(spark: SparkSession) -> DataFrame:
    features = [Vectors.sparse(50, {j * 7: float(1 + i + j) for j in range(1 + i % 4)}) for i in range(ROWS)]
    labels = [[str(i % 5), "every row"][: i % 2 + 1] for i in range(ROWS)]
    return spark.createDataFrame(zip(features, labels, strict=True), ["x", "label"])


KINDS: dict[str, tuple[Callable[[SparkSession], DataFrame], dict[str, object]]] = {
    "images": (images, {"image": "image", "image_shape": (2, 3)}),
    "vectors": (vectors, {}),
    "sparse rows": (sparse_rows, {"sparse": True, "unit_norm": False}),
}


@pytest.fixture(scope="module", params=KINDS)
def dataset(request: pytest.FixtureRequest, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rows, settings = KINDS[request.param]
    folder = str(tmp_path_factory.mktemp("prepared") / "dataset")
    return prepare(rows(spark), Prepare.model_validate({"output": folder, **SETTINGS, **settings}), spark=spark)


def rows_of(dataset: Dataset) -> Counter[tuple[bytes, ...]]:
    """The rows as sparkdl's own loader gives them, column by column."""
    found: Counter[tuple[bytes, ...]] = Counter()
    if dataset.input.kind != "sparse":
        for batch in Loader(dataset, "train", batch_size=64).epoch(0):
            found.update((x.numpy().tobytes(), y.numpy().tobytes()) for x, y in zip(*batch[:2], strict=True))
        return found
    for sparse in SparseLoader(dataset, "train", batch_size=1).epoch(0):
        indices = sparse.indices.int().numpy()
        found[indices.tobytes(), sparse.values.numpy().tobytes(), sparse.labels.numpy().tobytes()] += 1
    return found


def stored(dataset: Dataset) -> list[str]:
    return ["indices", "values", "labels"] if dataset.input.kind == "sparse" else [dataset.input.column, "label"]


def as_bytes(value: bytes | np.generic | np.ndarray) -> bytes:
    return value if type(value) is bytes else value.tobytes()


def test_columnar_batches_hold_exactly_the_same_rows(dataset: Dataset) -> None:
    seen: Counter[tuple[bytes, ...]] = Counter()
    with make_batch_reader(Path(dataset.path, "train").as_uri(), num_epochs=1, workers_count=1) as reader:
        for batch in reader:
            columns = [getattr(batch, name) for name in stored(dataset)]
            seen.update(tuple(map(as_bytes, row)) for row in zip(*columns, strict=True))
    assert seen == rows_of(dataset)
    assert seen.total() == ROWS


def test_single_rows_are_exactly_the_same(dataset: Dataset) -> None:
    with make_reader(Path(dataset.path, "train").as_uri(), num_epochs=1, workers_count=1) as reader:
        seen = Counter(tuple(as_bytes(getattr(row, name)) for name in stored(dataset)) for row in reader)
    assert seen == rows_of(dataset)


def test_what_it_reads_beside_the_rows_is_no_pickle(dataset: Dataset) -> None:
    metadata = pq.read_schema(Path(dataset.path, "train", "_common_metadata")).metadata
    assert set(metadata) == {b"dataset-toolkit.num_row_groups_per_file.v1"}
    assert sum(json.loads(*metadata.values()).values()) == len(dataset.row_groups("train"))


@pytest.mark.parametrize("name", ["my.pixels", "my `pixels`", "_pixels", "Label", "class"])
def test_a_column_of_any_name_is_seen(spark: SparkSession, tmp_path: Path, name: str) -> None:
    rows = vectors(spark).withColumnRenamed("label", "kind").withColumnRenamed("x", name)
    settings = Prepare.model_validate({"output": str(tmp_path / "dataset"), "label": "kind", **SETTINGS})
    dataset = prepare(rows, settings, spark=spark)
    with make_batch_reader(Path(dataset.path, "train").as_uri(), num_epochs=1, workers_count=1) as reader:
        assert sum(len(batch.features) for batch in reader) == ROWS
