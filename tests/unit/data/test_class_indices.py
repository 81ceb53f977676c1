"""Labels become the indices of their classes."""

import pyarrow as pa
import pytest

from sparkdl.data.class_indices import class_indices

NAMES = ["bird", "cat", "dog"]


@pytest.mark.parametrize("encoded", [False, True])
def test_a_label_becomes_the_place_of_its_class_and_an_unknown_one_null(encoded: bool) -> None:
    labels = pa.array(["dog", "bird", "fish", "dog"])
    found = class_indices(labels.dictionary_encode() if encoded else labels, NAMES)
    assert found.type == pa.int64() and found.to_pylist() == [2, 0, None, 2]


def test_names_may_be_an_array_and_labels_in_chunks() -> None:
    labels = pa.chunked_array([["cat"], [], ["bird", "cat"]], pa.string())
    assert class_indices(labels, pa.array(NAMES)).to_pylist() == [1, 0, 1]
    assert class_indices(labels, []).to_pylist() == [None] * 3
