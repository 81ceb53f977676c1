"""Columns of every kind: fields of structs, values of maps, arrays beside numbers, dates, truth values, twins."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from sparkdl.data import Dataset, prepare, split_rows
from sparkdl.data.model_card import ModelCard
from sparkdl.data.raw_columns import frame_column
from sparkdl.data.reading.loader import Loader
from sparkdl.errors import ConfigError, DataError
from sparkdl.preprocessing import as_fitted, as_floats, read_pipeline
from sparkdl.scoring.columns import check_columns
from sparkdl.settings import Prepare, Split, Stage
from sparkdl.tracking.translate import signature

from ..raw_inputs import raw_inputs

ROWS = 60
ZONE = "spark.sql.session.timeZone"


@pytest.fixture(scope="module", autouse=True)
def zone(spark: SparkSession) -> Iterator[None]:
    """A zone whose clocks are put forward, far from that of the machine and from UTC."""
    spark.conf.set(ZONE, "America/New_York")
    yield
    spark.conf.unset(ZONE)


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Nested columns, dates around the hours that a change of clocks leaves out, and columns that lack values."""
    return spark.range(ROWS).selectExpr(
        "id",
        "int(id % 2) as label",
        "named_struct('lat', id / 3, 'geo', named_struct('x', int(id), 'a.b', -id)) as address",
        "-1.0D as `address.lon`",
        "map('colour', if(id % 3 = 0, 'red', 'blue'), 'size', string(id)) as attributes",
        "map('a', id / 2, 'b.c', id / 4) as scores",
        "array(float(id), float(id) / 2) as emb",
        "id % 3 = 0 as member",
        "if(id % 5 = 0, null, id % 3 = 0) as asked",
        "date_add(date'1999-12-20', int(id * 7)) as signup",
        "timestamp_millis(1710054000000 + id * 1234567) as seen",
        "cast(timestamp'2024-02-28 22:10:05' as timestamp_ntz) + make_interval(0, 0, 0, int(id)) as wall",
        "if(id % 4 = 0, null, date_add(date'2024-01-01', int(id))) as gap",
        "cast(null as double) as nothing",
        "cast(id as decimal(10, 2)) as price",
    )


def settings(folder: Path, **changes: Any) -> Prepare:
    return Prepare.model_validate({"output": str(folder / "d"), "split": {"fractions": {}}, **changes})


def inputs_of(dataset: Dataset) -> list[tuple[float, ...]]:
    """What a network is fed with, of all rows."""
    batches = Loader(dataset, "train", batch_size=ROWS).epoch(0)
    return [tuple(map(float, row)) for batch in batches for row in batch[0].numpy()]


def scored_inputs(rows: DataFrame, dataset: Dataset) -> list[tuple[float, ...]]:
    """The same as scoring makes it, and a server."""
    card = ModelCard.model_validate_json(dataset.card_json)
    check_columns(rows, card, None)
    made = raw_inputs(rows, card, Path(dataset.path))
    assert {refused for _, refused in made} == {None}
    found = [tuple(row) for row, _ in made]
    if card.preprocessing:
        assert Counter(served_inputs(rows, dataset, card)) == Counter(found)
    return found


def served_inputs(rows: DataFrame, dataset: Dataset, card: ModelCard) -> list[tuple[float, ...]]:
    """The same as a server makes it of JSON's lists and dictionaries, and of dates."""
    served = pd.DataFrame(
        [row.asDict(recursive=True) for row in rows.withColumn("seen", sf.unix_micros("seen")).collect()]
    )
    served["seen"] = pd.to_datetime(served["seen"], unit="us", utc=True)
    columns = {}
    for name, kind in card.raw_columns.items():
        values = frame_column(served, name, card.fields.get(name, ()))
        values = values.map(lambda one: one.toArray() if hasattr(one, "toArray") else one)
        columns[name] = as_fitted(pa.array(values, from_pandas=True), name, kind)
    pipeline = read_pipeline(Path(str(dataset.preprocessing_path)))
    return [tuple(row) for row in as_floats(pipeline.transform(columns, card.input.column)).to_pylist()]


def as_float32(*values: float) -> tuple[float, ...]:
    return tuple(map(float, np.array(values, np.float32)))


@pytest.fixture(scope="module")
def nested(rows: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Fields, values of maps and an array beside each other."""
    names = ["address.lat", "address.geo.x", "address.geo.a.b", "address.lon", "attributes.colour", "scores.b.c", "emb"]
    stages = [Stage(kind="index", columns=["attributes.colour"])]
    return prepare(rows, settings(tmp_path_factory.mktemp("nested"), features=names, stages=stages))


def test_fields_values_of_maps_and_arrays_become_one_vector(nested: Dataset, rows: DataFrame) -> None:
    expected = {as_float32(i / 3, i, -i, -1, i % 3 == 0, i / 4, i, i / 2) for i in range(ROWS)}
    found = inputs_of(nested)
    assert len(found) == ROWS and set(found) == expected
    assert nested.raw_columns["address.geo.a.b"] == "bigint" and nested.raw_columns["emb"] == "vector"
    assert nested.card.fields["address.geo.a.b"] == ("address", "geo", "a.b")
    assert "address.lon" not in nested.card.fields  # a column whose own name has a dot
    served = {"address": "any", "address.lon": "double", "attributes": "any", "scores": "any", "emb": "vector"}
    assert nested.served_columns == served and signature(served)
    assert Counter(scored_inputs(rows, nested)) == Counter(found)


def test_a_model_of_fields_is_fed_with_columns_that_were_flattened_as_well(nested: Dataset, rows: DataFrame) -> None:
    flat = rows.select("*", sf.col("address.lat").alias("address.lat"), array_to_vector("emb").alias("v"))
    flat = flat.drop("emb").withColumnRenamed("v", "emb")
    assert Counter(scored_inputs(flat, nested)) == Counter(inputs_of(nested))


def test_the_rows_of_a_split_are_those_that_prepare_puts_there_with_all_their_columns(
    rows: DataFrame, tmp_path: Path
) -> None:
    chosen = settings(tmp_path, features=["address.lat", "emb"], split=Split(fractions={"test": 0.4}))
    dataset = prepare(rows, chosen)
    found = split_rows(rows, chosen, "test")
    assert found.columns == rows.columns
    batches = Loader(dataset, "test", batch_size=ROWS).epoch(0)
    assert sorted(row.id for row in found.collect()) == sorted(
        round(3 * float(row[0])) for batch in batches for row in batch[0].numpy()
    )


PARTS = ["year", "quarter", "month", "week", "day", "day_of_week", "day_of_year", "hour", "minute", "second", "age"]


def calendar(when: datetime) -> list[float]:
    """The parts by Python's own calendar."""
    whole = when.replace(microsecond=0)
    return [
        whole.year,
        (whole.month + 2) // 3,
        whole.month,
        whole.isocalendar().week,
        whole.day,
        whole.isoweekday(),
        whole.timetuple().tm_yday,
        whole.hour,
        whole.minute,
        whole.second,
        (whole - datetime(2020, 1, 1)) / timedelta(days=1),
    ]


def test_dates_and_times_become_parts_of_utc_whatever_the_session_s_zone(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    names = ["signup", "seen", "wall"]
    stage = {"kind": "date", "columns": names, "parts": PARTS, "since": "2020-01-01"}
    dataset = prepare(rows, settings(tmp_path, features=names, stages=[stage]))
    begin = datetime.fromtimestamp(1710054000, UTC).replace(tzinfo=None)
    expected = Counter(
        as_float32(
            *calendar(datetime(1999, 12, 20) + timedelta(days=7 * i)),
            *calendar(begin + timedelta(milliseconds=1234567 * i)),
            *calendar(datetime(2024, 2, 28, 22, 10, 5) + timedelta(days=i)),
        )
        for i in range(ROWS)
    )
    assert Counter(inputs_of(dataset)) == expected
    spark.conf.set(ZONE, "Asia/Tokyo")
    try:
        assert Counter(scored_inputs(rows, dataset)) == expected
    finally:
        spark.conf.set(ZONE, "America/New_York")


def test_a_missing_date_may_be_imputed_and_is_an_error_otherwise(rows: DataFrame, tmp_path: Path) -> None:
    stages = [Stage(kind="date", columns=["gap"], parts=["day_of_year"]), Stage(kind="impute", columns=["gap"])]
    dataset = prepare(rows, settings(tmp_path, features=["gap"], stages=stages))
    known = [i + 1 for i in range(ROWS) if i % 4]
    assert Counter(inputs_of(dataset)) == Counter(map(as_float32, [*known, *[np.mean(known)] * (ROWS // 4)]))
    assert Counter(scored_inputs(rows, dataset)) == Counter(inputs_of(dataset))
    with pytest.raises(DataError, match="column 'gap' has 15 rows that are null or NaN"):
        prepare(rows, settings(tmp_path / "other", features=["gap"], stages=stages[:1]))


def test_truth_values_are_indexed_and_imputed_and_dates_are_indexed(rows: DataFrame, tmp_path: Path) -> None:
    indexed = ["member", "signup", "seen", "wall"]
    stages = [Stage(kind="index", columns=indexed), Stage(kind="impute", columns=["asked"], strategy="mode")]
    dataset = prepare(rows, settings(tmp_path, features=[*indexed, "asked"], stages=stages))
    found = inputs_of(dataset)
    assert {(member, asked) for member, *_, asked in found} == {(1, 1), (0, 0), (1, 0)}  # two thirds are false
    assert all(sorted(row[place] for row in found) == list(range(ROWS)) for place in (1, 2, 3))
    assert Counter(scored_inputs(rows, dataset)) == Counter(found)


def test_twins_in_capitals_are_told_apart_where_one_is_used(rows: DataFrame, tmp_path: Path) -> None:
    twins = rows.select("id", "label", sf.lit("x").alias("LABEL"), sf.lit("y").alias("ID"), "emb", "emb")
    dataset = prepare(twins, settings(tmp_path, features=["id"]))
    assert sorted(inputs_of(dataset)) == [(float(i),) for i in range(ROWS)]
    assert split_rows(twins, settings(tmp_path, features=["id"]), "train").count() == ROWS
    for features, words in {
        ("id", "ID"): "the columns 'id', 'ID' differ only in upper and lower case, which Spark ignores; rename",
        ("emb",): "the rows have 2 columns of the name 'emb', as after a join; rename or drop all but one of them",
    }.items():
        with pytest.raises(DataError, match=words):
            prepare(twins, settings(tmp_path / "other", features=list(features)))


def test_an_array_called_weight_may_stand_beside_weights(rows: DataFrame, tmp_path: Path) -> None:
    named = rows.select(sf.col("emb").alias("weight"), "label", (sf.col("id") + 1).alias("w"))
    dataset = prepare(named, settings(tmp_path, weight="w", features=["weight"]))
    assert (dataset.input.column, dataset.raw_columns) == ("features", {"weight": "array<double>"})
    assert Counter(scored_inputs(named, dataset)) == Counter(inputs_of(dataset))


@pytest.mark.parametrize(
    ("feature", "stages", "words"),
    [
        ("address", [], r"of type struct<.*name its fields in `features`, such as 'address\.lat'"),
        ("attributes", [], r"of type map<.*name its keys in `features`, such as 'attributes\.key'"),
        ("address.lt", [], r"no column 'address\.lt' \(did you mean 'address\.lat'\?\); the source has id, label"),
        ("signup", [], "of type date, .* add the stage `date` for its parts"),
        ("null as x", [], "of type void, which cannot be learned from: it is null in all rows"),
        ("binary('a') as x", ["index"], "of type binary, and `index` is for numbers, truth values, text and dates"),
        ("array(array(1D)) as x", [], r"of type array<array<double>>, .* its elements must be numbers"),
        ("array('a') as x", [], r"of type array<string>, .* its elements must be numbers"),
        ("interval 1 day as x", ["impute"], "of type interval day, and `impute` is for numbers and truth values"),
        ("emb", ["impute"], "of type array<double>, and `impute` is for numbers and truth values"),
        ("id", ["hash_text"], "of type bigint, and `hash_text` is for text"),
        ("string(signup) as x", ["date"], "of type string, and `date` is for dates; read it as one"),
        ("id", ["standardise", "index"], "the stages before have made a vector of it, so put `index` before them"),
        (
            "nothing",
            ["impute"],
            "column 'nothing' has no value in the rows of the split 'train', so `impute` has nothing",
        ),
        ("scores.z as x", [], "column 'x' has 60 rows that are null or NaN"),
    ],
)
def test_a_column_that_cannot_be_learned_from_is_named_with_what_to_do(
    rows: DataFrame, tmp_path: Path, feature: str, stages: list[str], words: str
) -> None:
    name = feature.rpartition(" as ")[2]
    chosen = rows.selectExpr("*", feature) if " as " in feature else rows
    steps = [{"kind": kind, "columns": [name]} for kind in stages]
    with pytest.raises(DataError, match=words):
        prepare(chosen, settings(tmp_path, features=[name], stages=steps))
    assert list(tmp_path.iterdir()) == []


def test_decimals_and_categories_without_a_value_are_features(rows: DataFrame, tmp_path: Path) -> None:
    stages = [Stage(kind="impute", columns=["price"]), Stage(kind="index", columns=["nothing"])]
    dataset = prepare(rows, settings(tmp_path, features=["price", "nothing"], stages=stages))
    assert sorted(inputs_of(dataset)) == [(float(i), 0.0) for i in range(ROWS)]


def test_a_stage_of_a_column_that_is_no_feature_names_its_neighbour(rows: DataFrame, tmp_path: Path) -> None:
    stages = [Stage(kind="impute", columns=["pirce"])]
    with pytest.raises(ConfigError, match=r"stages\.0\.columns names 'pirce', .*; did you mean 'price'\?"):
        prepare(rows, settings(tmp_path, features=["price"], stages=stages))


def test_the_date_of_a_birth_before_1970_is_counted_from_the_day_that_is_named(
    spark: SparkSession, tmp_path: Path
) -> None:
    born = [(date(1900, 3, 1), 0), (date(1969, 12, 31), 1), (date(2024, 2, 29), 0), (date(1600, 1, 1), 1)]
    frame = spark.createDataFrame(born, "born date, label int")
    stage = {"kind": "date", "columns": ["born"], "parts": ["age", "day_of_week"], "since": "2000-01-01"}
    dataset = prepare(frame, settings(tmp_path, features=["born"], stages=[stage]))
    assert sorted(inputs_of(dataset)) == sorted(
        as_float32((day - date(2000, 1, 1)).days, day.isoweekday()) for day, _ in born
    )


def test_more_columns_than_the_driver_has_memory_for_are_refused_before_anything_starts(
    spark: SparkSession, tmp_path: Path
) -> None:
    wide = spark.range(4).select(sf.col("id").alias("label"), *[sf.lit(0.0).alias(f"x{i}") for i in range(3000)])
    words = r"3,000 columns to learn from, .* may not fit into the 1g of the driver; .* one column of arrays, or set"
    with pytest.raises(DataError, match=words):
        prepare(wide, settings(tmp_path))
    assert list(tmp_path.iterdir()) == []
