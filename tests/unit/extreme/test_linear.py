"""Loops of linear classifiers, against the formulas that they stand for."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy.optimize import minimize

from sparkdl.extreme.linear import fit_classes, margins

ROWS, WIDTH = 60, 12


def rows() -> tuple[npt.NDArray[Any], ...]:
    """Sparse rows with about half of the features each, one without any, and whole."""
    random = np.random.default_rng(0)
    whole = (random.random((ROWS, WIDTH)) * (random.random((ROWS, WIDTH)) < 0.5)).astype(np.float32)
    whole[7] = 0
    features = np.nonzero(whole)[1].astype(np.int32)
    ends = np.concatenate([[0], np.cumsum((whole != 0).sum(1))])
    return features, whole[whole != 0], ends, whole


def fit(signs: npt.NDArray[np.int8], *, cost: float = 0.5, smallest: float = 0.0, repeat: int = 1) -> Any:
    features, values, ends, _ = rows()
    own = np.tile(np.arange(ROWS), repeat)
    class_ends = np.arange(repeat + 1) * ROWS
    seeds = np.arange(repeat, dtype=np.uint32)
    return fit_classes(features, values, ends, WIDTH, own, np.tile(signs, repeat), class_ends, seeds, cost, smallest)


def weights_of(found: Any, number: int = 0) -> npt.NDArray[np.float64]:
    features, values, ends, _ = found
    weights = np.zeros(WIDTH)
    weights[features[ends[number] : ends[number + 1]]] = values[ends[number] : ends[number + 1]]
    return weights


@pytest.mark.parametrize("cost", [0.5, 4.0])
def test_a_classifier_is_the_minimum_of_its_loss(cost: float) -> None:
    whole = rows()[3]
    signs = np.where(whole[:, 0] + 0.2 * np.arange(ROWS) % 1 > 0.5, 1, -1).astype(np.int8)

    def loss(parameters: npt.NDArray[np.float64]) -> float:
        margins = signs * (whole @ parameters[:-1] + parameters[-1])
        return float(0.5 * parameters @ parameters + cost * (np.maximum(0, 1 - margins) ** 2).sum())

    best = minimize(loss, np.zeros(WIDTH + 1))
    found = fit(signs, cost=cost)
    mine = np.append(weights_of(found), found[3][0])
    assert loss(mine) < 1.03 * best.fun < 0.8 * loss(np.zeros(WIDTH + 1))


def test_small_weights_are_left_out_and_the_others_stay_as_they_are() -> None:
    signs = np.where(np.arange(ROWS) % 3, 1, -1).astype(np.int8)
    all_of_them, large = weights_of(fit(signs)), weights_of(fit(signs, smallest=0.1))
    assert 0 < np.count_nonzero(large) < np.count_nonzero(all_of_them)
    np.testing.assert_array_equal(large, np.where(abs(all_of_them) >= 0.1, all_of_them, 0))


def test_a_class_learns_the_same_whatever_it_is_trained_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    signs = np.where(np.arange(ROWS) % 3, 1, -1).astype(np.int8)
    many = fit(signs, repeat=300)  # more weights than a first guess has room for
    assert len(many[0]) > 1024
    np.testing.assert_array_equal(weights_of(many, 0), weights_of(fit(signs)))


def test_a_class_without_rows_says_no_to_all() -> None:
    features, values, ends, _ = rows()
    nothing = np.empty(0, np.int64), np.empty(0, np.int8), np.zeros(2, np.int64), np.zeros(1, np.uint32)
    found = fit_classes(features, values, ends, WIDTH, *nothing, 0.5, 0.1)
    assert found[2].tolist() == [0, 0]
    assert found[3].tolist() == [-1.0]


def test_margins_are_those_of_each_rows_own_candidates() -> None:
    """Of two classes, one has a weight for nearly each feature, the other only a few; rows have three features."""
    random = np.random.default_rng(0)
    width, number = 400, 50
    weights = np.zeros((2, width), np.float32)
    weights[0, random.permutation(width)[:350]], weights[1, 5:15] = random.normal(size=350), random.normal(size=10)
    features = np.concatenate([random.permutation(width)[:3] for _ in range(number)]).astype(np.int32)
    features[:3] = 399, 0, 5
    values, ends = random.random(3 * number, np.float32), np.arange(0, 3 * number + 1, 3)
    kept = [np.flatnonzero(row).astype(np.int32) for row in weights]
    trained = np.concatenate(kept), weights[weights != 0], np.array([0, 350, 360]), np.array([0.5, -1], np.float32)
    candidates = random.integers(2, size=(number, 4))
    whole = np.zeros((number, width), np.float32)
    whole[np.repeat(np.arange(number), 3), features] = values
    scales = np.array([1, 2], np.float32)
    expected = (whole @ weights.T * scales + trained[3])[np.arange(number)[:, None], candidates]
    result = np.full((number, 4), np.nan, np.float32)
    margins(0, 20, features, values, ends, width, candidates, *trained, scales, result)
    assert np.isnan(result[20:]).all()
    margins(20, number, features, values, ends, width, candidates, *trained, scales, result)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
