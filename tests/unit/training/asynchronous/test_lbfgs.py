"""L-BFGS that sees no vectors, beside SciPy's and scikit-learn's."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize, rosen, rosen_der
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch.nn import functional

from sparkdl.parameters.quasi_newton import QuasiNewton
from sparkdl.training.asynchronous.lbfgs import LBFGS, Value, Vectors

Function = Callable[[torch.Tensor], tuple[float, torch.Tensor]]


class Local(Vectors):
    """All vectors are in this process, on two servers."""

    def __init__(self, function: Function, point: torch.Tensor, *, memory: int = 10) -> None:
        self.function, self.point = function, point
        self.servers = [QuasiNewton(part, memory=memory) for part in point.split([1, len(point) - 1])]

    def move(self, rate: float) -> Value:
        for server in self.servers:
            server.move(rate)
        loss, gradient = self.function(self.point)
        for server, part in zip(self.servers, gradient.split([1, len(self.point) - 1]), strict=True):
            server.merge(part, rate=0, staleness=0, weight=1)
        return Value(loss, sum(server.slope() for server in self.servers))

    def accept(self, *, keep: bool) -> None:
        for server in self.servers:
            server.accept(keep=keep)

    def products(self) -> NDArray[np.float64]:
        return sum(server.products() for server in self.servers).numpy()

    def turn(self, coefficients: Sequence[float]) -> None:
        for server in self.servers:
            server.turn(coefficients)


def rosenbrock(point: torch.Tensor) -> tuple[float, torch.Tensor]:
    return float(rosen(point.numpy())), torch.from_numpy(rosen_der(point.numpy()))


def minimised(vectors: Vectors, steps: int) -> tuple[float, LBFGS]:
    found = LBFGS(vectors)
    loss = min(found.step() for _ in range(steps))
    return loss, found


def test_it_takes_as_few_evaluations_as_scipys() -> None:
    start = torch.tensor([-1.2, 1.0] * 5, dtype=torch.float64)
    theirs = minimize(rosen, start.numpy(), jac=rosen_der, method="L-BFGS-B", options={"maxcor": 10})
    loss, ours = minimised(Local(rosenbrock, start.clone()), theirs.nit + 10)
    assert loss < 1e-8
    assert ours.evaluations < 1.5 * theirs.nfev


def test_multinomial_regression_ends_with_scikit_learns_loss() -> None:
    inputs, labels = (each[::4] for each in load_digits(return_X_y=True))
    inputs, strength = inputs / 16, 1e-2
    theirs = LogisticRegression(C=1 / (strength * len(labels)), tol=1e-8, max_iter=2000).fit(inputs, labels)
    rows, classes = torch.from_numpy(inputs), torch.from_numpy(labels)

    def function(point: torch.Tensor) -> tuple[float, torch.Tensor]:
        point = point.detach().requires_grad_()
        weight, bias = point[:640].view(10, 64), point[640:]
        loss = functional.cross_entropy(rows @ weight.T + bias, classes) + strength / 2 * weight.square().sum()
        loss.backward()
        return loss.item(), point.grad

    expected, _ = function(torch.from_numpy(np.concatenate([theirs.coef_.ravel(), theirs.intercept_])))
    loss, _ = minimised(Local(function, torch.zeros(650, dtype=torch.float64)), 80)
    assert loss == pytest.approx(expected, abs=1e-7)


def test_it_says_when_no_lower_loss_can_be_found() -> None:
    vectors = Local(lambda point: (float(point.square().sum()), 2 * point), torch.tensor([3.0, -4.0]))
    found = LBFGS(vectors)
    while not found.converged:
        loss = found.step()
    assert loss == pytest.approx(0, abs=1e-12) and found.evaluations < 15


def test_a_loss_that_is_no_number_ends_no_run() -> None:
    def function(point: torch.Tensor) -> tuple[float, torch.Tensor]:
        return (point - point.log()).sum().item(), 1 - 1 / point  # not defined where a step of the gradient's leads

    loss, _ = minimised(Local(function, torch.tensor([0.02, 3.0, 0.1], dtype=torch.float64)), 30)
    assert loss == pytest.approx(3, abs=1e-6)


def test_a_gradient_is_the_same_to_the_last_bit_in_whatever_order_its_parts_come() -> None:
    torch.manual_seed(0)
    parts = list(torch.randn(100, 1000) * torch.logspace(-6, 2, 100)[:, None])
    found = []
    for order in (range(100), torch.randperm(100).tolist()):
        server = QuasiNewton(torch.zeros(1000), memory=2)
        for number in order:
            server.merge(parts[number], rate=0, staleness=0, weight=1)
        server.accept(keep=False)
        server.turn([1.0])
        found.append(server.products())
    assert torch.equal(*found)
    exact = torch.stack(parts).double().sum(0)
    assert float(found[0]) == pytest.approx(float(exact @ exact), rel=1e-12)


def test_what_a_server_remembers_comes_back() -> None:
    vectors = Local(rosenbrock, torch.tensor([-1.2, 1.0, 2.0, 0.5], dtype=torch.float64), memory=3)
    ours = LBFGS(vectors)
    for _ in range(5):
        ours.step()
    again = Local(rosenbrock, vectors.point.clone(), memory=3)
    for server, before in zip(again.servers, vectors.servers, strict=True):
        server.load(before.state())
    again.move(0.0)
    again.accept(keep=False)
    np.testing.assert_array_equal(again.products(), vectors.products())
