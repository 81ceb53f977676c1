"""Each rule of merging equals the formula of its paper, in plain arithmetic, push after push."""

import math

import pytest
import torch

from sparkdl.parameters import RULES, Outer

GRADIENTS = torch.tensor([[1.0, -2.0, 0.0], [0.5, 4.0, 0.0], [-3.0, 1.0, 2.0]], dtype=torch.float64)
STALENESS = [0, 3, 1]
RATE = 0.1


def merged(rule: str) -> list[float]:
    values = torch.ones(3, dtype=torch.float64)
    merge = RULES[rule](values).merge
    for gradient, staleness in zip(GRADIENTS, STALENESS, strict=True):
        merge(gradient, rate=RATE, staleness=staleness, weight=1.0)
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


def test_an_outer_step_waits_for_its_quorum_and_then_for_its_grace() -> None:
    now = 0.0
    rule = Outer(torch.zeros(1), rate=1.0, momentum=0.0, quorum=2, grace=3.0, clock=lambda: now)

    def push(change: float, weight: float = 1.0) -> None:
        rule.merge(torch.tensor([change]), rate=0.0, staleness=0, weight=weight)

    push(1.0)
    now = 100.0
    rule.settle(at_once=False)
    assert rule.values.item() == 0  # one alone is no quorum
    push(2.0)
    now = 102.0
    push(6.0)  # within the grace
    assert rule.values.item() == 0
    now = 103.5
    push(50.0)  # too late for this step
    assert rule.values.item() == pytest.approx(-3.0)
    rule.settle(at_once=True)
    assert rule.values.item() == pytest.approx(-53.0)
    rule.settle(at_once=True)
    assert rule.values.item() == pytest.approx(-53.0)


def test_outer_steps_equal_those_of_pytorch_on_weighted_means_also_from_a_checkpoint() -> None:
    weights = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    optimizer = torch.optim.SGD([weights], lr=0.7, momentum=0.9, nesterov=True)
    rule = Outer(torch.ones(3, dtype=torch.float64), rate=0.7, momentum=0.9, quorum=2, grace=0.0)
    for one, other in zip(GRADIENTS, GRADIENTS.flip(0), strict=True):
        weights.grad = (one + 3 * other) / 4
        optimizer.step()
        rule.merge(one, rate=0.0, staleness=0, weight=10.0)
        twin = Outer(rule.values.clone(), rate=0.7, momentum=0.9, quorum=2, grace=0.0)
        twin.load({name: each.clone() for name, each in rule.state().items()})
        rule = twin
        rule.merge(other, rate=0.0, staleness=0, weight=30.0)
        assert rule.values.tolist() == pytest.approx(weights.tolist())
