"""What becomes of raw Arrow columns before a network sees them, and which rows are refused."""

import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from sparkdl.data.card import InputSpec
from sparkdl.data.model_card import ModelCard
from sparkdl.preprocessing import FittedPipeline
from sparkdl.preprocessing.assembling import Assemble, ExpectWidth
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.values import SPARSE
from sparkdl.preprocessing.word_counts import CountHashes
from sparkdl.preprocessing.words import CutAtSpaces
from sparkdl.scoring.raw_inputs import Features, RawInputs


def raw_inputs(raw_columns: dict[str, str], *stages: FittedStage, **spec: Any) -> RawInputs:
    """Those of a model that reads these columns; without stages, as they are."""
    input = {"column": "features", "kind": "vector", "shape": (len(raw_columns),), "dtype": "float32"} | spec
    card = ModelCard(
        input=InputSpec(**input), label_names=("a", "b"), raw_columns=raw_columns, preprocessing=bool(stages)
    )
    return RawInputs(card, FittedPipeline(stages) if stages else None)


def assembled(raw_columns: dict[str, str], *before: FittedStage, **spec: Any) -> RawInputs:
    return raw_inputs(raw_columns, *before, Assemble(tuple(raw_columns), "features", np.float32), **spec)


NUMBERS: dict[str, pa.Array] = {
    "float": pa.array([0.1, -0.0, 3e38, -1e-40], pa.float32()),
    "double": pa.array([0.1, -0.0, 1e300, -1e-60], pa.float64()),
    "bigint": pa.array([2**53 + 1, -(2**60) + 1, 16777217, 0], pa.int64()),
    "int": pa.array([16777217, -5, 0, 7], pa.int32()),
    "boolean": pa.array([True, False, True, False]),
}


def test_columns_of_numbers_become_one_matrix_with_the_bits_that_float64_gives() -> None:
    found, refused = assembled({kind: kind for kind in NUMBERS}).read(NUMBERS)
    with np.errstate(over="ignore"):
        expected = np.stack(
            [(np.array(column.to_pylist(), np.float64) + 0.0).astype(np.float32) for column in NUMBERS.values()], axis=1
        )
    assert refused is None
    matrix = np.array(found.to_pylist(), np.float32)
    assert matrix.view(np.uint32).tolist() == expected.view(np.uint32).tolist()


def test_what_is_missing_is_not_a_number() -> None:
    columns = {"a": pa.array([1.0, None], pa.float32()), "b": pa.array([None, 2], pa.int64())}
    found, refused = assembled({"a": "float", "b": "bigint"}).read(columns)
    np.testing.assert_array_equal(found.to_pylist(), [[1, np.nan], [np.nan, 2]])
    assert refused is None


@pytest.mark.parametrize(
    ("values", "kind", "sql_type", "said"),
    [
        ([7.0, None, np.nan, 7.5, 1e12], pa.float64(), "int", [None, None, None, "7.5", "1.0E12"]),
        ([1.25e-5, -np.inf, 2.0**63], pa.float64(), "bigint", ["1.25E-5", "-Infinity", "9.223372036854776E18"]),
        ([0.1, 3.0], pa.float32(), "tinyint", ["0.1", None]),
        ([127, 128, None], pa.int64(), "tinyint", [None, "128", None]),
        ([1000.0, 1.005], pa.float64(), "decimal(4,2)", ["1000.0", None]),
    ],
)
def test_a_number_that_the_type_of_training_does_not_have_is_refused_as_spark_writes_it(
    values: list[float | None], kind: pa.DataType, sql_type: str, said: list[str | None]
) -> None:
    _, refused = assembled({"a": sql_type}).read({"a": pa.array(values, kind, from_pandas=False)})
    why = f"is no {sql_type}, which the model was trained on"
    assert refused.to_pylist() == [text and f"column 'a': {text} {why}" for text in said]


def vectors_of_spark(rows: list[dict[str, Any] | None]) -> pa.Array:
    return pa.array(rows, SPARSE)


DENSE = {"type": 1, "size": None, "indices": None}


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[1.0, 2.0], None, [1.0], [3.0, None], [5.0, 6.0]]),
        pa.array([["1", "2e0"], None, ["1"], ["3", "three"], ["5.0", " 6 "]]),
        vectors_of_spark(
            [
                {**DENSE, "values": [1.0, 2.0]},
                None,
                {"type": 0, "size": 3, "indices": [2], "values": [1.0]},
                {**DENSE, "values": [3.0]},
                {"type": 0, "size": 2, "indices": [0, 1], "values": [5.0, 6.0]},
            ]
        ),
        vectors_of_spark([{**DENSE, "values": [1.0, 2.0]}, None, None, None, {**DENSE, "values": [5.0, 6.0]}]),
    ],
    ids=["numbers", "texts", "vectors", "dense"],
)
@pytest.mark.parametrize("kind", ["vector", "sparse"])
def test_vectors_of_any_form_are_read_and_rows_without_one_of_their_width_are_refused(
    column: pa.Array, kind: str
) -> None:
    model = assembled({"v": "vector"}, ExpectWidth("v", 2), shape=(2,), kind=kind)
    for part, rows in ((column, [1, 2, 3]), (column.slice(1), [0, 1, 2])):
        found, refused = model.read({"v": part})
        why = "column 'v' is null or lacks a number, or is not 2 wide"
        assert [row for row, reason in enumerate(refused.to_pylist()) if reason == why] == rows
        last = found[len(part) - 1].as_py()
        assert last == [5.0, 6.0] if kind == "vector" else last["values"] == [5.0, 6.0]


def test_a_text_that_is_null_is_refused_and_others_are_read() -> None:
    model = raw_inputs(
        {"text": "string"}, CutAtSpaces("text", "words"), CountHashes("words", "features", 1, binary=False)
    )
    found, refused = model.read({"text": pa.array(["a b", None])})
    assert refused.to_pylist() == [None, "column 'text' is null"]
    assert found[0].as_py() == [2.0]


def test_the_row_that_a_stage_fails_for_is_found() -> None:
    model = raw_inputs({"v": "vector"}, Assemble(("v",), "features"), shape=(2,))  # which does not say how wide it is
    rows = [[1.0, 2.0]] * 10
    found, refused = model.read({"v": pa.array([*rows[:6], [1.0, 2.0, 3.0], *rows[7:]])})
    assert refused is None and [len(row) for row in found.to_pylist()] == [2] * 6 + [3] + [2] * 3  # a network tells
    model = assembled({"v": "vector", "x": "string"})
    _, refused = model.read({"v": pa.array(rows), "x": pa.array(["a"] * 10)})
    assert set(refused.to_pylist()) == {"the column 'x' holds string, which is not a number"}


@pytest.mark.parametrize("kind", ["vector", "sparse"])
def test_no_rows_are_no_inputs(kind: str) -> None:
    model = assembled({"v": "vector"}, ExpectWidth("v", 2), shape=(2,), kind=kind)
    found, refused = model.read({"v": pa.array([], pa.list_(pa.float64()))})
    assert (len(found), refused) == (0, None)


def test_an_image_of_another_shape_or_without_one_is_none() -> None:
    image = {"height": 2, "width": 1, "nChannels": 1, "data": b"ab"}
    images = pa.array([image, image | {"height": 1, "width": 2}, image | {"height": None}, None])
    model = raw_inputs({"image": "struct"}, kind="image", shape=(2, 1, 1), dtype="uint8")
    assert model.read({"image": images}).column.to_pylist() == [b"ab", b"", None, None]
    assert model.read({"image": images.slice(0, 1)}).column.to_pylist() == [b"ab"]


def test_files_of_images_become_pixels_and_what_is_none_is_refused() -> None:
    content = io.BytesIO()
    Image.new("L", (4, 8), 200).save(content, "PNG")
    files = [content.getvalue(), b"ab", b"<html>", None, content.getvalue()[:45]]
    model = raw_inputs({"image": "binary"}, kind="image", shape=(2, 1, 1), dtype="uint8")
    found, refused = model.read({"image": pa.array(files)})
    assert found.to_pylist() == [b"\xc8\xc8", b"ab", None, None, None]
    said = "column 'image': no image (6 bytes, not the 2 of 2 x 1 x 1 raw pixels, and it begins with b'<html>')"
    assert refused.to_pylist()[:4] == [None, None, said, None]
    assert refused[4].as_py().startswith("column 'image': an image that cannot be decoded (")
    of_four = raw_inputs({"image": "binary"}, kind="image", shape=(2, 1, 4), dtype="uint8")
    (reason,) = of_four.read({"image": pa.array(files[:1])}).refused.to_pylist()
    assert reason == "column 'image': an image of other channels (files are decoded to 1 or 3 channels, not to 4)"


def test_columns_of_an_estimator_are_side_by_side_and_what_is_missing_is_a_mean() -> None:
    model = raw_inputs({"features": "array<float>"}, shape=(4,))
    kinds = (("x", "float"), ("v", "vector"), ("n", "float"))
    columns = {
        "x": pa.array([1.5, None, -9.0]),
        "v": pa.array([[1.0, None], [np.nan, 4.0], [5.0, 6.0]]),
        "n": pa.array([1, 2, 3], pa.int64()),
    }
    found, refused = model.behind(Features(kinds, -9.0, (10.0, 20.0, 30.0, 40.0))).read(columns)
    assert refused is None
    assert found.to_pylist() == [[1.5, 1.0, 30.0, 1.0], [10.0, 20.0, 4.0, 2.0], [10.0, 5.0, 6.0, 3.0]]
    _, refused = model.behind(Features(kinds)).read(columns)
    assert refused.to_pylist() == ["column 'v' is null or lacks a number", None, None]
