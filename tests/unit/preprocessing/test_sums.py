"""Sums are those of exact arithmetic, in whatever order and parts they are added up."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sparkdl.preprocessing.sums import added, exact, sums_of, sums_of_squares

NUMBERS = st.floats(-1e100, 1e100, allow_subnormal=False).map(lambda number: number if abs(number) > 1e-100 else 0.0)


@given(arrays(np.float64, st.tuples(st.integers(1, 40), st.just(2)), elements=NUMBERS), st.data())
def test_sums_of_parts_are_rounded_to_the_same_number_as_those_of_all(values: np.ndarray, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(values)))
    shuffled = values[data.draw(st.permutations(range(len(values))))]
    together = added(sums_of(shuffled[:cut]), sums_of(shuffled[cut:]))
    for place in range(2):
        total = sum(map(Fraction, values[:, place].tolist()), Fraction())
        most = sum(map(abs, map(Fraction, values[:, place].tolist())), Fraction())
        assert abs(exact(together, place) - total) <= most * Fraction(2) ** -98


@given(arrays(np.float64, st.tuples(st.integers(1, 40), st.just(1)), elements=NUMBERS))
def test_squares_are_exact_too(values: np.ndarray) -> None:
    total = sum((Fraction(value) ** 2 for value in values[:, 0].tolist()), Fraction())
    assert abs(exact(sums_of_squares(values), 0) - total) <= total * Fraction(2) ** -98


def test_what_cancels_is_not_lost() -> None:
    values = np.array([[1e16], [1.0], [-1e16], [3e-20]])
    assert float(exact(sums_of(values), 0)) == 1.0
    assert float(exact(sums_of(values[[0, 2, 3]]), 0)) == 3e-20


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 1e300])
def test_a_sum_that_is_no_number_is_none(value: float) -> None:
    assert np.isnan(float(exact(sums_of_squares(np.array([[value], [1.0]])), 0)))


def test_no_rows_add_up_to_nothing() -> None:
    assert sums_of(np.zeros((0, 3))).tolist() == [[0.0] * 3] * 2
