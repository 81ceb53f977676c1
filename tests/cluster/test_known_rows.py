"""Rows that tasks know without Spark, and rows that Spark looks at: the same dataset to the last byte."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkdl.data import prepare
from sparkdl.data.preparing import look
from sparkdl.errors import DataError
from sparkdl.settings import Prepare, Source, Split, Stage

COLUMNS = {
    "a": "cast(id % 900 * 0.37 as double)",
    "b": "cast(if(id % 9 = 0, null, id % 900 % 11) as float)",
    "text": "concat('word', id % 5)",
    "label": "id % 3",
    "number": "cast(id % 7 * 0.5 as float)",
    "class": "cast(id % 3 as double)",
    "person": "concat('p', id % 50)",
    "part": "if(id % 7 = 0, 'test', if(id % 7 = 1, 'validation', 'train'))",
    "weight": "cast(1 + id % 2 as double)",
}
STAGES = [
    Stage(kind="impute", columns=["b"]),
    Stage(kind="standardise", columns=["a", "b"]),
    Stage(kind="index", columns=["text"]),
]
CASES: dict[str, dict[str, Any]] = {
    "stages": {"features": ["a", "b", "text"], "stages": STAGES},
    "numbers, of rows that weigh": {"features": ["a"], "label": "number", "task": "regression", "weight": "weight"},
    "a split that is given": {
        "features": ["a"],
        "label": "class",
        "split": Split(column="part", fractions={"validation": 0.1, "dev": 0.2}),
    },
    "groups": {"features": ["a"], "split": Split(group=["person"], fractions={"validation": 0.2})},
}


@pytest.fixture(scope="module")
def raw(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that differ, and a folder of those and of others that are equal to some of them."""
    folder = tmp_path_factory.mktemp("raw")
    rows = spark.range(900).selectExpr(*[f"{value} as `{name}`" for name, value in COLUMNS.items()])
    for name, all_rows in {"differ": rows, "equal": rows.unionAll(rows).unionAll(rows.limit(40))}.items():
        all_rows.repartition(4).write.option("parquet.block.size", 2048).parquet(f"{folder}/{name}")
    return folder


@pytest.mark.parametrize("rows", ["differ", "equal"])
@pytest.mark.parametrize("case", CASES)
def test_what_tasks_know_and_what_spark_finds_make_the_same_dataset(
    spark: SparkSession, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: str, case: str
) -> None:
    source = Source(format="parquet", path=f"{raw}/{rows}")
    settings = Prepare(output=f"{tmp_path}/known", rows_per_group=64, num_ranks=2, **CASES[case])
    known = prepare(source, settings)
    in_another_order = spark.read.parquet(str(source.path)).repartition(3)
    monkeypatch.setattr(look, "know_rows", lambda *_, **__: None)
    by_spark = prepare(in_another_order, settings.model_copy(update={"output": f"{tmp_path}/by Spark"}))
    assert known.digest == by_spark.digest
    assert sum(map(known.rows, known.splits)) == {"differ": 900, "equal": 1840}[rows]


def test_rows_that_spark_reads_are_known_too_where_none_are_equal(
    spark: SparkSession, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Prepare(output=f"{tmp_path}/known", rows_per_group=64, **CASES["stages"])
    found, know = [], look.know_rows
    monkeypatch.setattr(look, "know_rows", lambda *args, **keys: found.append(know(*args, **keys)) or found[-1])
    known = prepare(spark.read.parquet(f"{raw}/differ"), settings)
    monkeypatch.setattr(look, "know_rows", lambda *_, **__: None)
    by_spark = prepare(
        spark.read.parquet(f"{raw}/differ"), settings.model_copy(update={"output": f"{tmp_path}/by Spark"})
    )
    assert found[0] is not None and known.digest == by_spark.digest


@pytest.mark.parametrize("in_files", [True, False])
def test_what_stages_make_infinite_is_named_by_its_row(spark: SparkSession, tmp_path: Path, in_files: bool) -> None:
    rows = spark.range(200).selectExpr("id", "cast(if(id < 198, id, 1e300) as double) as age", "id % 2 as label")
    rows.write.parquet(f"{tmp_path}/raw")
    source = Source(format="parquet", path=f"{tmp_path}/raw")
    settings = Prepare(output=f"{tmp_path}/d", features=["age"], stages=[Stage(kind="impute", columns=["age"])])
    with pytest.raises(DataError, match=r"2 rows with values .* after preprocessing \(the first: id = 198, age = 1e"):
        prepare(source if in_files else rows, settings)
    skipped = prepare(source if in_files else rows, settings.model_copy(update={"on_bad_rows": "skip"}))
    assert sum(map(skipped.rows, skipped.splits)) == 198
