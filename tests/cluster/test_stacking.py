"""Columns that tasks stack, and Spark's own expressions: the same hashes, the same bad rows, the same dataset."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sparkdl.data import Dataset, prepare
from sparkdl.data.preparing import look
from sparkdl.data.preparing.order import hash_of
from sparkdl.data.preparing.row_hashes import hash_rows, is_hashable
from sparkdl.data.preparing.row_readers import file_reader
from sparkdl.settings import Prepare, Source, Split, Stage

EVERY_TYPE = {
    "double": "if(id % 7 = 0, null, cast(id as double) * 1e30)",
    "zero": "if(id % 4 = 0, double('-inf'), double('-0.0'))",
    "float": "cast(if(id % 5 = 0, 'NaN', if(id % 3 = 0, '-0.0', id / 7)) as float)",
    "int": "cast(id as int)",
    "long": "-id * 10000000019",
    "truth": "id % 2 = 0",
    "byte": "cast(id % 100 as tinyint)",
    "short": "cast(id - 9 as smallint)",
    "text": "if(id % 9 = 0, null, repeat(cast(id as string), cast(id % 40 as int)))",
    "decimal": "cast(id / 100 as decimal(12, 3))",
    "date": "date_add(date'1960-01-01', cast(id as int))",
    "instant": "timestamp_micros(id * 1000001 - 5)",
    "time": "if(id % 3 = 0, null, timestamp_ntz'2020-01-01 00:00:00')",
}


def test_hashes_are_sparks_own_for_values_of_every_type(spark: SparkSession) -> None:
    rows = spark.range(300).selectExpr(*[f"{value} as `{name}`" for name, value in EVERY_TYPE.items()])
    assert all(is_hashable(column.dataType.simpleString()) for column in rows.schema)
    salts = [("split", 7), ("content", 0), ("order", 1 << 40)]
    hashes = [hash_of(rows.columns, seed, salt).alias(salt) for salt, seed in salts]

    def compare(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in filter(len, batches):
            same = hash_rows(batch.columns[3:], salts) == [batch.column(place).to_numpy() for place in range(3)]
            yield pa.RecordBatch.from_arrays([pa.array(same.all(axis=0))], ["same"])

    assert [row.same for row in rows.select(*hashes, "*").mapInArrow(compare, "same boolean").collect()] == [True] * 300


@pytest.mark.parametrize("equals", [False, True])
def test_stacked_rows_make_the_same_dataset_and_the_same_warnings(
    spark: SparkSession,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    equals: bool,
) -> None:
    shown = ["double", "zero", "float", "int", "long", "truth", "byte", "short"]
    rows = spark.range(400).selectExpr(
        *[f"{EVERY_TYPE[name]} as `{name}`" for name in shown],
        "if(id = 11, null, id % 3) as label",
        "if(id = 13, -1, 1 + id % 2) as weight",
        "if(id = 17, null, if(id < 300, 'train', 'test')) as part",
    )
    rows = (rows.unionAll(rows) if equals else rows).cache()
    settings = Prepare(
        output=str(tmp_path / "stacked"),
        weight="weight",
        split=Split(column="part", fractions={"validation": 0.2}, stratify=True),
        on_bad_rows="skip",
        rows_per_group=16,
    )
    datasets, told = [], []
    for stacks in (True, False):
        if not stacks:
            monkeypatch.setattr(look, "can_stack", lambda *_: False)
            settings = settings.model_copy(update={"output": str(tmp_path / "by Spark")})
        caplog.clear()
        datasets.append(prepare(rows.repartition(3) if stacks else rows, settings))
        told.append([record.getMessage() for record in caplog.records if "skipped" in record.getMessage()])
    assert told[0] == told[1] and len(told[0]) == 6
    one, other = (facts(dataset) for dataset in datasets)
    assert one == other


def facts(dataset: Dataset) -> dict[str, object]:
    """What is the same for the same rows: files to the last byte, and what is known of them."""
    return dataset.card.model_dump(exclude={"digest", "preprocessing_sha256"})


def test_files_that_tasks_read_make_the_same_dataset(spark: SparkSession, tmp_path: Path) -> None:
    shown = ["double", "float", "int", "long", "truth", "byte", "short", "text"]
    rows = spark.range(400).selectExpr(*[f"{EVERY_TYPE[name]} as `{name}`" for name in shown], "id % 3 as label")
    rows.repartition(3).write.option("parquet.block.size", 4096).parquet(f"{tmp_path}/raw files")
    source = Source(format="parquet", path=f"{tmp_path}/raw files")
    opened = spark.read.parquet(str(source.path))
    assert file_reader(source, opened, opened.columns) is not None
    kinds = {"impute": ["double", "float"], "standardise": ["double", "float", "int"], "index": ["text", "byte"]}
    settings = Prepare(
        output=str(tmp_path / "of files"),
        stages=[Stage(kind=kind, columns=columns) for kind, columns in kinds.items()],
        rows_per_group=16,
    )
    of_files = prepare(source, settings)
    by_spark = prepare(opened, settings.model_copy(update={"output": str(tmp_path / "by Spark")}))
    assert of_files.digest == by_spark.digest
    assert of_files.rows("train") > 300


def test_files_whose_columns_mean_something_only_to_spark_are_read_by_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.range(9).selectExpr("id", "id % 2 as label", "now() as at").write.partitionBy("label").parquet(
        f"{tmp_path}/parts"
    )
    source = Source(format="parquet", path=f"{tmp_path}/parts")
    opened = spark.read.parquet(str(source.path))
    assert file_reader(source, opened, ["id"]) is not None
    assert file_reader(source, opened, ["id", "at"]) is None  # a time, which files have in several ways
    assert file_reader(source, opened, ["id", "label"]) is None  # in the folders' names alone
    assert file_reader(source.model_copy(update={"options": {"mergeSchema": True}}), opened, ["id"]) is None
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), tmp_path / "parts" / "label=0" / "other.parquet")
    assert file_reader(source, spark.read.parquet(str(source.path)), ["id"]) is None
