"""Each rule of merging equals the formula of its paper, in plain arithmetic, push after push."""

import math

import pytest
import torch

from sparkdl.parameters import RULES

GRADIENTS = torch.tensor([[1.0, -2.0, 0.0], [0.5, 4.0, 0.0], [-3.0, 1.0, 2.0]], dtype=torch.float64)
STALENESS = [0, 3, 1]
RATE = 0.1


def merged(rule: str) -> list[float]:
    values = torch.ones(3, dtype=torch.float64)
    merge = RULES[rule](values).merge
    for gradient, staleness in zip(GRADIENTS, STALENESS, strict=True):
        merge(gradient, rate=RATE, staleness=staleness)
    return values.tolist()


def test_sgd_subtracts_each_gradient_times_the_rate() -> None:
    assert merged("sgd") == pytest.approx([1 - RATE * sum(column) for column in GRADIENTS.T.tolist()])


def test_dynsgd_divides_the_rate_by_staleness_plus_one() -> None:
    expected = [
        1 - sum(RATE * value / (late + 1) for value, late in zip(column, STALENESS, strict=True))
        for column in GRADIENTS.T.tolist()
    ]
    assert merged("dynsgd") == pytest.approx(expected)


def test_adagrad_divides_by_the_root_of_all_squares_so_far() -> None:
    expected = []
    for column in GRADIENTS.T.tolist():
        value, squares = 1.0, 0.0
        for gradient in column:
            squares += gradient**2
            value -= RATE * gradient / math.sqrt(squares) if squares else 0.0
        expected.append(value)
    assert merged("adagrad") == pytest.approx(expected)


def test_adagrad_equals_that_of_pytorch() -> None:
    weights = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = torch.optim.Adagrad([weights], lr=RATE)
    for gradient in GRADIENTS:
        weights.grad = gradient
        optimizer.step()
    assert merged("adagrad") == pytest.approx(weights.tolist())


def test_elastic_adds_what_is_pushed() -> None:
    assert merged("elastic") == pytest.approx([1 + sum(column) for column in GRADIENTS.T.tolist()])
