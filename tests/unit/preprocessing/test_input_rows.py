"""The values of an input as the bytes of a row, and which rows cannot be used."""

import numpy as np
import pyarrow as pa

from sparkdl.preprocessing.input_rows import FEATURE, InputForm, made_input, numbers_of
from sparkdl.preprocessing.lists import ShortenedLists
from sparkdl.preprocessing.values import SparseVectors

LISTS = pa.array([[1, 2, 3], [], None, [4], [2**31, -5, 7]], pa.list_(pa.int64()))


def test_lists_of_ids_are_cut_and_what_is_no_id_is_told() -> None:
    made = ShortenedLists("a", "b", "int32", 2).transform({"a": LISTS})["b"]
    assert made.to_pylist() == [[1, 2], [], [], [4], [-1, -1]]  # type: ignore[union-attr]
    found = made_input(made, InputForm("sequence", "int32", vocabulary=4))
    assert {what: rows.tolist() for what, rows in found.wrong.items()} == {
        "empty": [False, True, True, False, False],
        "id": [False, False, False, True, True],
    }
    numbers, offsets = numbers_of(found.values.slice(3), np.dtype(np.int32))
    assert numbers.tolist() == [4, -1, -1] and offsets.tolist() == [0, 1, 3]


def test_rows_that_are_longer_than_they_may_be_are_told() -> None:
    made = ShortenedLists("a", "b", "int32").transform({"a": LISTS.slice(0, 1)})["b"]
    assert made_input(made, InputForm("sequence", "int32", max_length=3)).wrong == {}
    assert made_input(made, InputForm("sequence", "int32", max_length=2)).wrong["long"].tolist() == [True]


def test_a_series_is_float32_and_what_is_missing_or_beyond_it_is_told() -> None:
    series = pa.array([[0.5, 1e300], [None, 1.0], [2.0]], pa.list_(pa.float64()))
    made = ShortenedLists("a", "b", "float32").transform({"a": series})["b"]
    assert made_input(made, InputForm("sequence", "float32")).wrong["number"].tolist() == [True, True, False]


def test_dense_ids_are_whole_numbers_and_vectors_are_finite() -> None:
    ids = np.array([[0.0, 3.0], [1.5, 2.0], [np.nan, 1.0], [2.0, 5.0]])
    found = made_input(ids, InputForm("ids", "int32", vocabulary=5))
    assert found.wrong["id"].tolist() == [False, True, True, True]
    assert numbers_of(found.values.slice(0, 1), np.dtype(np.int32))[0].tolist() == [0, 3]
    assert made_input(ids, InputForm("vector", "float32")).wrong["number"].tolist() == [False, False, True, False]
    assert made_input(ids[:1], InputForm("vector", "float32")).wrong == {}


def test_sparse_rows_keep_what_is_not_zero_whole_or_not() -> None:
    whole = np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 3.0]])
    parts = SparseVectors(3, np.array([0, 1, 1, 3]), np.array([1, 0, 2]), np.array([2.0, 1.0, 3.0]))
    for rows in (whole, parts):
        numbers, offsets = numbers_of(made_input(rows, InputForm("sparse", "float32")).values, FEATURE)
        assert numbers.tolist() == [(1, 2.0), (0, 1.0), (2, 3.0)] and offsets.tolist() == [0, 1, 1, 3]
