"""How good the k best classes are."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from sparkdl.extreme.metrics import (
    evaluate,
    inverse_propensities,
    ndcg_at_k,
    precision_at_k,
    propensity_scored_precision_at_k,
    recall_at_k,
)

RECORDED = json.loads(Path(__file__).with_name("napkinxc_measures.json").read_text())


def rows(*labels):
    """Labels of rows as (indices, offsets)."""
    flat = np.array([label for row in labels for label in row], dtype=np.int64)
    return flat, np.cumsum([0, *map(len, labels)])


def test_precision_divides_by_k_also_where_there_are_fewer_labels():
    predicted = np.array([[3, 1, 2], [4, 0, 9]])
    assert precision_at_k(predicted, *rows([3], [0, 9, 7])).tolist() == pytest.approx(
        [1 / 2, (1 / 2 + 1 / 2) / 2, 1 / 2]
    )


def test_recall_is_the_part_of_a_rows_labels():
    predicted = np.array([[3, 1, 2], [4, 0, 9]])
    expected = [(1 + 0) / 2, (1 + 1 / 3) / 2, (1 + 2 / 3) / 2]
    assert recall_at_k(predicted, *rows([3], [0, 9, 7])).tolist() == pytest.approx(expected)


def test_ndcg_compares_with_the_best_order_of_the_rows_own_labels():
    second, third = 1 / math.log2(3), 1 / math.log2(4)
    predicted = np.array([[3, 1, 2], [4, 0, 9]])
    expected = [1 / 2, (1 + second / (1 + second)) / 2, (1 + (second + third) / (1 + second + third)) / 2]
    assert ndcg_at_k(predicted, *rows([3], [0, 9, 7])).tolist() == pytest.approx(expected)


def test_propensities_are_those_of_jain_et_al():
    factor = (math.log(1000) - 1) * 2.5**0.55
    expected = [1 + factor / 1.5**0.55, 1 + factor / 101.5**0.55]
    assert inverse_propensities(np.array([0, 100]), num_rows=1000).tolist() == pytest.approx(expected)


def test_propensity_scored_precision_rewards_rare_classes():
    counts = np.array([500, 1])
    often, rare = inverse_propensities(counts, num_rows=501)
    labels = rows([0, 1], [0])
    found = propensity_scored_precision_at_k(np.array([[0, 1], [1, 0]]), *labels, counts=counts, num_rows=501)
    assert found.tolist() == pytest.approx([often / (rare + often), 1])
    found = propensity_scored_precision_at_k(np.array([[1, 0], [0, 1]]), *labels, counts=counts, num_rows=501)
    assert found.tolist() == pytest.approx([1, 1])


def test_labels_never_seen_in_training_are_missed_and_reported():
    predicted = np.array([[3, 1], [0, 2]])
    found = evaluate(predicted, *rows([3, -1], [-1]), counts=np.array([4, 3, 2, 1]), num_rows=10)
    assert (found.rows, found.labels, found.unseen_labels) == (2, 3, 2)
    assert found.precision.tolist() == [1 / 2, 1 / 4]
    assert found.recall.tolist() == [1 / 4, 1 / 4]
    weights = inverse_propensities(np.array([1, 0]), num_rows=10)
    assert found.propensity_scored_precision.tolist() == pytest.approx(
        [weights[0] / (2 * weights[1]), weights[0] / (2 * weights[1] + weights[0])]
    )


def test_a_missing_prediction_is_no_hit():
    assert precision_at_k(np.array([[3, -1]]), *rows([3, -1])).tolist() == [1, 1 / 2]


def test_a_row_without_labels_scores_zero():
    found = evaluate(np.array([[1, 2], [1, 2]]), *rows([], [1]))
    assert found.precision.tolist() == [1 / 2, 1 / 4]
    assert found.recall.tolist() == found.ndcg.tolist() == [1 / 2, 1 / 2]
    assert found.propensity_scored_precision is None


def test_the_measures_agree_with_napkinxc():
    predicted = np.array(RECORDED["predicted"])
    counts = np.array(RECORDED["counts"])
    labels, offsets = rows(*RECORDED["truth"])
    labels[labels >= len(counts)] = -1
    expected = RECORDED["measures"]
    found = evaluate(predicted, labels, offsets, counts=counts, num_rows=RECORDED["num_rows"])
    assert found.unseen_labels == sum(label == len(counts) for row in RECORDED["truth"] for label in row) > 0
    assert found.precision.tolist() == pytest.approx(expected["precision"])
    assert found.recall.tolist() == pytest.approx(expected["recall"])
    assert found.ndcg.tolist() == pytest.approx(expected["ndcg"])
    assert found.propensity_scored_precision.tolist() == pytest.approx(expected["psp_default"])
    amazon = evaluate(predicted, labels, offsets, counts=counts, num_rows=RECORDED["num_rows"], a=0.6, b=2.6)
    assert amazon.propensity_scored_precision.tolist() == pytest.approx(expected["psp_amazon"])


def test_metrics_have_names_that_can_be_logged():
    named = evaluate(np.array([[1, 2]]), *rows([2]), counts=np.array([5, 5, 5]), num_rows=15).as_metrics()
    assert named["precision_at_1"] == 0 and named["precision_at_2"] == 0.5 and named["unseen_labels"] == 0
    assert set(named) == {
        *(f"{name}_at_{k}" for k in (1, 2) for name in ("precision", "recall", "ndcg", "propensity_scored_precision")),
        "labels",
        "unseen_labels",
    }


def test_arrays_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match="do not fit 1 labels with 2 offsets"):
        precision_at_k(np.array([[1], [2]]), *rows([2]))
    with pytest.raises(ValueError, match="predicted twice"):
        precision_at_k(np.array([[1, 1]]), *rows([2]))
