"""What Spark saved is read, and what it never writes is named."""

import json
import re
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkdl.errors import DataError, ModelError
from sparkdl.preprocessing import FittedPipeline, SparseVectors, as_fitted, as_structs, read_pipeline
from sparkdl.preprocessing.values import SPARSE, doubles

FEATURE = "org.apache.spark.ml.feature"


def save(folder: Path, *stages: tuple[str, dict[str, Any], dict[str, Any] | None]) -> FittedPipeline:
    """A pipeline as Spark saves it, read again."""
    uids = [f"stage{number}" for number in range(len(stages))]
    _metadata(folder, "org.apache.spark.ml.PipelineModel", {"stageUids": uids})
    for number, (name, values, fitted) in enumerate(stages):
        place = folder / "stages" / f"{number}_{uids[number]}"
        _metadata(place, f"{FEATURE}.{name}", values)
        if fitted is not None:
            (place / "data").mkdir()
            pq.write_table(pa.Table.from_pylist([fitted]), place / "data" / "part-00000.parquet")
    return read_pipeline(folder)


def _metadata(folder: Path, name: str, values: dict[str, Any]) -> None:
    (folder / "metadata").mkdir(parents=True)
    text = json.dumps({"class": name, "paramMap": values, "defaultParamMap": {}})
    (folder / "metadata" / "part-00000").write_text(text + "\n")


IMPUTER = ("ImputerModel", {"inputCols": ["a"], "outputCols": ["b"], "missingValue": "NaN"}, {"a": 2.5})
ASSEMBLER = ("VectorAssembler", {"inputCols": ["b", "v"], "outputCol": "c", "handleInvalid": "keep"}, None)


def test_a_pipeline_is_applied_without_spark(tmp_path: Path) -> None:
    pipeline = save(tmp_path / "saved", IMPUTER, ASSEMBLER)
    vectors = np.array([[1.0, 2.0], [3.0, -0.0]])
    found = pipeline.transform({"a": as_fitted(pa.array([None, 7]), "a", "int"), "v": vectors}, "c")
    np.testing.assert_array_equal(found, [[2, 1, 2], [7, 3, 0]])
    sparse = SparseVectors(2, np.array([0, 0, 1]), np.array([1]), np.array([5.0]))
    found = pipeline.transform({"a": pa.array([1.0, 0.0]), "v": sparse}, "c")
    assert isinstance(found, SparseVectors) and found.width == 3
    assert as_structs(found).type == SPARSE
    assert as_structs(found).to_pylist()[0] == {"type": 0, "size": 3, "indices": [0], "values": [1.0]}


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        (("ImputerModel", {"inputCols": ["a"], "outputCols": ["b"], "missingValue": "NaN"}, None), "is not what Spark"),
        ((*IMPUTER[:2], {"a": "two"}), r"its surrogates are \['two'\]"),
        (("HashingTF", {"inputCol": "a", "outputCol": "b", "numFeatures": "9"}, None), "numFeatures is '9'"),
        (("HashingTF", {"inputCol": "a", "outputCol": "b", "numFeatures": 0}, None), "hashes to 0 places"),
        (("VectorAssembler", {"inputCols": [1], "handleInvalid": "keep"}, None), r"its inputCols are \[1\]"),
        (("IDFModel", {"inputCol": "a", "outputCol": "b"}, {"idf": [1.0]}), "it holds no vector"),
        (
            ("StringIndexerModel", {"inputCols": ["a"], "handleInvalid": "keep"}, {"labelsArray": ["a"]}),
            "categories are no texts",
        ),
    ],
)
def test_damaged_files_are_named(stage: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"the preprocessing is damaged.*{says}"):
        save(tmp_path, stage)


@pytest.mark.parametrize(
    ("values", "sql_type", "expected"),
    [
        ([1, None, 3], "tinyint", [1, None, 3]),
        ([1.0, float("nan"), None], "bigint", [1, None, None]),
        ([True, None], "double", [1.0, None]),
        ([1, 2], "float", [1.0, 2.0]),
        ([0.125, None], "decimal(5,2)", ["0.13", None]),
        ([0, 2], "boolean", [False, True]),
        ([7], "string", ["7"]),
        ([None, None], "string", [None, None]),
    ],
)
def test_numbers_of_another_type_are_taken_where_they_are_the_same(values: Any, sql_type: str, expected: Any) -> None:
    found = as_fitted(pa.array(values), "a", sql_type).to_pylist()  # type: ignore[union-attr]
    assert [str(value) if "decimal" in sql_type and value is not None else value for value in found] == expected


@pytest.mark.parametrize(
    ("values", "sql_type", "says"),
    [
        ([1, 1.5], "int", r"column 'a': 1\.5 in row 1 is no int, which the model was trained on"),
        ([300], "tinyint", "300 in row 0 is no tinyint"),
        ([2.0**70], "bigint", "is no bigint"),
        ([1000.0], "decimal(4,2)", r"1000\.0 in row 0 is no decimal\(4,2\)"),
        (["7"], "int", "holds string, and the model was trained on int"),
        ([1.5], "string", "holds double, and the model was trained on string"),
        ([[1.0], [1.0, 2.0]], "vector", "are 1 to 2 wide"),
        ([[1.0], None], "vector", "is null or lacks a number"),
    ],
)
def test_what_is_not_the_same_in_the_type_of_training_is_refused_with_its_row(
    values: Any, sql_type: str, says: str
) -> None:
    with pytest.raises(DataError, match=says):
        as_fitted(pa.array(values), "a", sql_type)


@pytest.mark.parametrize(
    "kind", [pa.decimal128(18, 2), pa.decimal128(38, 30), pa.decimal128(5, -2), pa.decimal256(40, 3)]
)
def test_a_decimal_becomes_the_nearest_float(kind: pa.DataType) -> None:
    texts = ["0.10", "12.35", "-99999.99", "12345678901234.56", "9007199254740993", "0", None, "-0.01", "1E+2"]
    fitting = []
    for text in texts:
        with suppress(pa.ArrowInvalid):
            fitting.append(pa.scalar(text and Decimal(text), kind).as_py())
    column = pa.array(fitting, kind)
    for part in (column, column.slice(1), column.drop_null()):
        np.testing.assert_array_equal(
            doubles(part), [np.nan if one is None else float(one) for one in part.to_pylist()]
        )


def test_a_text_that_is_null_is_refused_by_the_name_of_its_raw_column(tmp_path: Path) -> None:
    copy = ("SQLTransformer", {"statement": "SELECT *, `my.text` AS `__sparkdl_0` FROM __THIS__"}, None)
    pipeline = save(tmp_path, copy, ("Tokenizer", {"inputCol": "__sparkdl_0", "outputCol": "words"}, None))
    with pytest.raises(DataError, match=r"the column 'my\.text' is null in 1 rows"):
        pipeline.transform({"my.text": pa.array(["a", None])}, "words")
    with pytest.raises(DataError, match=r"preprocessing reads a column 'my\.text'; there are text"):
        pipeline.transform({"text": pa.array(["a", None])}, "words")


def test_what_index_takes_in_place_of_dates_and_truth_values_is_cast_as_spark_casts_it(tmp_path: Path) -> None:
    day, time = date(2024, 2, 29), datetime(2024, 2, 29, 10, 0, 10, 500000)
    columns = {"t": pa.array([True, None]), "d": pa.array([day, None]), "n": pa.array([time, time.replace(second=0)])}
    for sql, expected in {
        "CAST(`t` AS double)": [1.0, None],
        "CAST(`t` AS string)": ["true", None],
        "CAST(`d` AS string)": ["2024-02-29", None],
        "CAST(`n` AS string)": ["2024-02-29 10:00:10.5", "2024-02-29 10:00:00.5"],
        "unix_micros(`n`)": [1709200810500000, 1709200800500000],
    }.items():
        statement = {"statement": f"SELECT *, {sql} AS `out` FROM __THIS__"}
        pipeline = save(tmp_path / re.sub(r"\W", "_", sql), ("SQLTransformer", statement, None))
        assert pipeline.transform(dict(columns), "out").to_pylist() == expected


@pytest.mark.parametrize(
    "sql", ["CAST(`t` AS binary)", "CAST(java_method('a') AS string)", "unix_micros(rand())", "CAST(`${x}` AS double)"]
)
def test_no_other_cast_is_loaded(tmp_path: Path, sql: str) -> None:
    with pytest.raises(ModelError, match="which could start any program"):
        save(tmp_path / "saved", ("SQLTransformer", {"statement": f"SELECT *, {sql} AS `out` FROM __THIS__"}, None))
