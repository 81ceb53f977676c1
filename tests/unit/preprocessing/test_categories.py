"""Categories as places in a table."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.errors import DataError
from sparkdl.preprocessing.categories import HashCategories
from sparkdl.preprocessing.hashes import xxhash64


def hashed(values: pa.Array, places: int = 1000) -> list[float]:
    found = HashCategories(("x",), ("place",), places).transform({"x": values})["place"]
    assert isinstance(found, pa.Array)
    return list(found.to_pylist())


def test_a_category_has_the_place_of_its_hash_as_spark_writes_it() -> None:
    texts = ["red", "blue", "red", ""]
    assert hashed(pa.array(texts)) == [xxhash64(pa.array([text]))[0] % 1000 for text in texts]
    assert hashed(pa.array([17, -3])) == hashed(pa.array(["17", "-3"]))
    assert hashed(pa.array([True, False])) == hashed(pa.array(["true", "false"]))
    assert hashed(pa.array([1e10, -0.0, 1.5])) == hashed(pa.array(["1.0E10", "-0.0", "1.5"]))
    assert hashed(pa.array([Decimal("1.50")])) == hashed(pa.array(["1.50"]))


def test_null_is_a_category_too_and_the_rest_of_its_column_stays_in_place() -> None:
    assert hashed(pa.array(["red", None, "blue"])) == hashed(pa.array(["red", "", "blue"]))
    assert hashed(pa.array([None, None], pa.int64())) == hashed(pa.array(["", ""]))
    assert hashed(pa.array([], pa.string())) == []


def test_ten_million_categories_spread_evenly_over_ten_million_places() -> None:
    places = np.array(hashed(pa.array(np.arange(100_000)), places=10_000_000))
    assert places.min() >= 0 and places.max() < 10_000_000
    assert len(set(places.tolist())) > 99_000
    assert np.bincount((places // 1_000_000).astype(int)).tolist() == pytest.approx([10_000] * 10, rel=0.05)


def test_a_column_of_lists_has_no_categories() -> None:
    with pytest.raises(DataError, match="'x' holds no texts or numbers"):
        hashed(pa.array([[1]]))
