"""Splits, with a real Spark: each row drawn by itself, classes dealt evenly, groups kept together, times kept apart."""

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkdl.data import Dataset, prepare, split_rows
from sparkdl.data.card import Card
from sparkdl.errors import DataError
from sparkdl.settings import Prepare, Split, TimeSplit

FEATURES = [f"x{number}" for number in range(6)]


def flags(spark: SparkSession, rows: int, columns: int) -> DataFrame:
    """Columns of zeros and ones, of which seven in ten are ones: most rows have many equals. With a number of its own
    for each row."""
    drawn = [(sf.rand(number) < 0.7).cast("int").alias(name) for number, name in enumerate(FEATURES[:columns])]
    label = (sf.rand(99) < 0.7).cast("int").alias("label")
    return spark.range(rows, numPartitions=3).select("id", *drawn, label).cache()


@pytest.fixture(scope="module")
def table(spark: SparkSession) -> DataFrame:
    return flags(spark, 5000, 6)


@pytest.fixture
def prepared(tmp_path: Path) -> Callable[..., Dataset]:
    def make(rows: DataFrame, name: str = "d", **settings: Any) -> Dataset:
        return prepare(rows, Prepare.model_validate({"output": str(tmp_path / name), "num_ranks": 1, **settings}))

    return make


def is_likely(found: int, of: int, share: float) -> bool:
    """Whether a count is within four standard deviations of what chance gives."""
    return abs(found - of * share) < 4 * math.sqrt(of * share * (1 - share))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_split_of_a_table_of_categories_is_a_sample_of_it(
    table: DataFrame, prepared: Callable[..., Dataset], seed: int
) -> None:
    dataset = prepared(table, features=FEATURES, seed=seed)
    assert sum(dataset.rows(split) for split in dataset.splits) == 5000
    for split in ("validation", "test"):
        assert is_likely(dataset.rows(split), 5000, 0.1)
        assert is_likely(dataset.card.splits[split].class_counts[1], dataset.rows(split), 0.7)


def test_few_kinds_of_rows_leave_no_split_empty(spark: SparkSession, prepared: Callable[..., Dataset]) -> None:
    dataset = prepared(flags(spark, 10_000, 3), features=FEATURES[:3])
    assert all(is_likely(dataset.rows(split), 10_000, 0.1) for split in ("validation", "test"))


def test_rows_that_are_alike_are_drawn_one_by_one_and_lie_apart(
    spark: SparkSession, prepared: Callable[..., Dataset]
) -> None:
    value = sf.when(sf.col("id") < 3000, -1.0).otherwise(sf.col("id").cast("double")).alias("x")
    dataset = prepared(spark.range(5000).select(value, sf.lit("a").alias("label")), rows_per_group=400)
    for split in ("validation", "test"):
        rows = spark.read.parquet(f"{dataset.path}/{split}")
        assert is_likely(rows.count(), 5000, 0.1)
        assert is_likely(rows.where("features[0] = -1").count(), 3000, 0.1)
    training = (
        spark.read.parquet(f"{dataset.path}/train")
        .groupBy(sf.input_file_name())
        .agg(sf.count("*").alias("rows"), sf.sum((sf.col("features")[0] == -1).cast("int")).alias("alike"))
    )
    assert all(is_likely(group.alike, group.rows, 0.6) for group in training.collect())


def test_the_dataset_is_the_same_however_rows_lie(table: DataFrame, prepared: Callable[..., Dataset]) -> None:
    for number, split in enumerate([Split(), Split(stratify=True)]):
        first, second = (
            prepared(rows, f"{number}-{name}", features=FEATURES, split=split)
            for name, rows in {"as it is": table, "shuffled": table.repartition(5).orderBy("x3", sf.desc("id"))}.items()
        )
        assert first.digest == second.digest


def test_rows_without_equals_are_where_they_were_before_rows_had_numbers(
    spark: SparkSession,
) -> None:
    rows = spark.range(100).selectExpr("id as x", "id % 2 as label")
    found = sorted(row.x for row in split_rows(rows, Prepare(output="x", features=["x"]), "test").collect())
    assert found == [1, 8, 10, 11, 13, 16, 29, 38, 43, 52, 70, 78, 96]


def test_scoring_a_split_gives_its_rows_and_the_same_ones_each_time(
    table: DataFrame, prepared: Callable[..., Dataset]
) -> None:
    dataset = prepared(table, features=FEATURES)
    settings = Prepare.model_validate({"output": dataset.path, **dataset.card.settings})
    found = {split: [row.id for row in split_rows(table, settings, split).collect()] for split in dataset.splits}
    assert {split: len(ids) for split, ids in found.items()} == {split: dataset.rows(split) for split in found}
    assert sorted(number for ids in found.values() for number in ids) == list(range(5000))
    ones = split_rows(table, settings, "test").where("label = 1").count()
    assert ones == dataset.card.splits["test"].class_counts[1]
    again = split_rows(table.repartition(7).orderBy("x1"), settings, "test")
    assert sorted(row.id for row in again.collect()) == sorted(found["test"])


def test_a_dataset_from_before_stays_as_it_is_and_scoring_follows_its_rule(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(1000).selectExpr("id % 50 as x", "id % 2 as label")
    settings = Prepare(output=str(tmp_path / "d"), features=["x"], num_ranks=1)
    content = dict(prepare(rows, settings).card)
    del content["digest"], content["split_by"]
    kept = content["settings"] | {"split": {"column": None, "fractions": {"validation": 0.1, "test": 0.1}}}
    older = Card.create(**content | {"settings": kept})
    assert (older.split_by, "split_by" in older.to_json()) == ("content", False)
    (tmp_path / "d" / "card.json").write_text(older.to_json())
    assert prepare(rows, settings).card == older
    counts = Counter(row.x for row in split_rows(rows, settings, "train").collect())
    assert set(counts.values()) == {20}  # all of its equals, or none
    elsewhere = settings.model_copy(update={"output": str(tmp_path / "another")})
    assert set(Counter(row.x for row in split_rows(rows, elsewhere, "train").collect()).values()) != {20}


def test_each_split_has_its_share_of_every_class_to_one_row(
    spark: SparkSession, prepared: Callable[..., Dataset], caplog: pytest.LogCaptureFixture
) -> None:
    sizes = {"common": 2000, "rare": 31, "rarest": 2}
    kinds = "case when id < 2000 then 'common' when id < 2031 then 'rare' when id < 2033 then 'rarest' end"
    rows = spark.range(2040).selectExpr("id", "id % 4 as x", f"{kinds} as label")
    settings = {"features": ["x"], "split": Split(stratify=True), "on_bad_rows": "skip"}
    dataset = prepared(rows, **settings)
    for split, share in {"train": 0.8, "validation": 0.1, "test": 0.1}.items():
        counts = dict(zip(dataset.label_names, dataset.card.splits[split].class_counts, strict=True))
        assert all(abs(counts[name] - share * size) <= 1 for name, size in sizes.items())
    assert "have no row in a split: 'rarest' (2 rows) in test, validation" in caplog.text
    scored = split_rows(rows, Prepare.model_validate({"output": dataset.path, **settings}), "test")
    assert scored.where("label = 'common'").count() == 200


def test_a_group_is_in_one_split_and_its_name_is_not_learned_from(
    table: DataFrame, prepared: Callable[..., Dataset]
) -> None:
    rows = table.withColumn("customer", sf.col("id") % 300).withColumn("place", sf.lit("home")).drop("id")
    settings = {"split": {"fractions": {"test": 0.2}, "group": ["customer", "place"]}}
    dataset = prepared(rows, **settings)
    assert list(dataset.raw_columns) == FEATURES
    found = {
        split: {row.customer for row in split_rows(rows, Prepare(output="x", **settings), split).collect()}  # type: ignore[arg-type]
        for split in ("train", "test")
    }
    assert not found["train"] & found["test"]
    assert is_likely(len(found["test"]), 300, 0.2)
    nameless = rows.withColumn("customer", sf.when(sf.col("customer") > 5, sf.col("customer")))
    with pytest.raises(DataError, match=r"'customer' \(split.group\) is null in 1\d\d rows .*; say which group"):
        prepared(nameless, "nameless", **settings)


@pytest.mark.parametrize(
    ("column", "test_from", "validation_from"),
    [
        ("date_add(date'2024-01-01', cast(id as int))", "2024-01-09", "2024-01-07"),
        ("timestamp'2024-01-01 00:00' + make_interval(0, 0, 0, id)", "2024-01-09T00:00", "2024-01-07"),
        ("timestamp_ntz'2024-01-01 00:00' + make_interval(0, 0, 0, id)", "2024-01-09", "2024-01-07T00:00"),
        ("concat('2024-01-', lpad(id + 1, 2, '0'), 'T01:00+01:00')", "2024-01-09T00:00Z", "2024-01-07T00:00Z"),
        ("id * 10", 80, 60),
        ("id / 4D", 2, 1.5),
    ],
)
def test_what_is_later_is_for_testing(
    spark: SparkSession, tmp_path: Path, column: str, test_from: Any, validation_from: Any
) -> None:
    rows = spark.range(10).selectExpr("id", f"{column} as at", "id as x", "id % 2 as label")
    time = TimeSplit(column="at", test_from=test_from, validation_from=validation_from)
    settings = Prepare(output=str(tmp_path / "d"), split=Split(time=time), task="regression", features=["x"])
    found = {
        split: sorted(row.id for row in split_rows(rows, settings, split).collect()) for split in ("train", "test")
    }
    assert found == {"train": [0, 1, 2, 3, 4, 5], "test": [8, 9]}


def test_times_are_of_the_sessions_zone_and_no_features(spark: SparkSession, prepared: Callable[..., Dataset]) -> None:
    rows = spark.range(48).selectExpr("timestamp_seconds(1704067200 + id * 3600) as at", "id as x", "id % 2 as label")
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
        dataset = prepared(rows, split={"time": {"column": "at", "test_from": "2024-01-02"}})
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    assert {split: dataset.rows(split) for split in dataset.splits} == {"train": 15, "test": 33}
    assert list(dataset.raw_columns) == ["x"]


@pytest.mark.parametrize(
    ("change", "split", "message"),
    [
        (
            {"at": "if(id < 3, null, id)"},
            {"time": {"column": "at", "test_from": 7}},
            r"\(split.time\) is null or NaN in 3",
        ),
        (
            {"at": "if(id < 3, '12:30', '2024-01-01')"},
            {"time": {"column": "at", "test_from": "2024-01-01"}},
            "in 3 rows",
        ),
        (
            {"at": "id"},
            {"time": {"column": "at", "test_from": "2024-01-01"}},
            "is bigint: write `test_from`.*as a number",
        ),
        ({"at": "current_date()"}, {"time": {"column": "at", "test_from": 7}}, "is date: .*as a date or time"),
        (
            {"at": "current_date()"},
            {"time": {"column": "at", "test_from": "2024-01-01T10:00"}},
            "without a time of day",
        ),
        ({"at": "array(1)"}, {"time": {"column": "at", "test_from": 7}}, "which is no time"),
        ({"at": "id"}, {"time": {"column": "at", "test_from": 70}}, "split 'test' has 0 of 10 rows"),
        ({"label": "id / 3"}, {"stratify": True}, "the label column 'label' is for regression"),
        ({}, {"group": ["nowhere"]}, "no column 'nowhere'"),
    ],
)
def test_a_split_that_cannot_be_made_is_an_error_that_says_so(
    spark: SparkSession, prepared: Callable[..., Dataset], change: dict[str, str], split: Any, message: str
) -> None:
    rows = spark.range(10).selectExpr("id", "id as x", "id % 2 as label")
    for name, value in change.items():
        rows = rows.withColumn(name, sf.expr(value))
    with pytest.raises(DataError, match=message):
        prepared(rows, features=["x"], split=split)
