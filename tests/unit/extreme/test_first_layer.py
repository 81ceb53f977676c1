"""The first layer's weights: what batches add up, and how their rows are trained."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from sparkdl.data import SparseBatch
from sparkdl.extreme.first_layer import (
    WIDE,
    Step,
    _step,
    _step_in_loops,
    _sums,
    _sums_in_loops,
    add_up,
    occurrences,
    step_rows,
)

FEATURES, ROWS = 60, 32
STEP = Step(rate=0.1, memory=0.9, weight=0.19, epsilon=1e-8)


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def batch_of(seed: int) -> SparseBatch:
    """Rows of no to nine features, one of which may come twice."""
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 10, ROWS)
    indices = random.integers(0, FEATURES, sizes.sum())
    return SparseBatch(
        torch.from_numpy(indices),
        torch.from_numpy(random.random(len(indices), np.float32)),
        torch.from_numpy(np.concatenate([[0], sizes.cumsum()])),
        torch.zeros(ROWS, dtype=torch.int64),
        torch.arange(ROWS + 1),
    )


def dense(batch: SparseBatch) -> torch.Tensor:
    row_of = torch.repeat_interleave(torch.arange(ROWS), batch.offsets.diff())
    return torch.zeros(ROWS, FEATURES).index_put_((row_of, batch.indices), batch.values, accumulate=True)


@pytest.mark.parametrize("way", [_sums_in_loops, _sums], ids=["loops", "tensors"])
def test_the_sums_are_those_of_a_dense_product(way: Callable[..., torch.Tensor]) -> None:
    batch, table = batch_of(0), torch.randn(FEATURES, 21)
    torch.testing.assert_close(way(table, occurrences(batch)), dense(batch) @ table)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("way", [_step_in_loops, _step], ids=["loops", "tensors"])
def test_a_row_goes_as_far_as_the_mean_square_of_its_gradient_says(way: Callable[..., None], parts: int) -> None:
    batch, table, gradient = batch_of(0), torch.randn(FEATURES, parts * 21), torch.randn(ROWS, parts * 21)
    squares = torch.rand(FEATURES, parts)
    of_rows = (dense(batch).t() @ gradient).view(FEATURES, parts, 21)
    means = 0.9 * squares + 0.1 * of_rows.square().mean(2)
    moved = table - (0.1 * of_rows / (means / 0.19).sqrt()[..., None]).flatten(1)
    occurs = dense(batch).any(0)
    before = table.clone(), squares.clone()
    way(table, squares, occurrences(batch), gradient, STEP)
    torch.testing.assert_close(table[occurs], moved[occurs])
    torch.testing.assert_close(squares[occurs], means[occurs])
    assert torch.equal(table[~occurs], before[0][~occurs]) and torch.equal(squares[~occurs], before[1][~occurs])


def test_threads_change_no_bit(three_threads: None) -> None:
    found, gradient = occurrences(batch_of(1)), torch.randn(ROWS, 21)

    def result() -> list[torch.Tensor]:
        table, squares = torch.linspace(-1, 1, FEATURES * 21).view(FEATURES, 21), torch.zeros(FEATURES, 1)
        sums = _sums_in_loops(table, found)
        _step_in_loops(table, squares, found, gradient, STEP)
        return [sums, table, squares]

    in_three = result()
    torch.set_num_threads(1)
    assert all(map(torch.equal, result(), in_three))


@pytest.mark.parametrize("width", [4, WIDE])
def test_a_batch_without_features_changes_nothing(width: int) -> None:
    empty = SparseBatch(
        torch.empty(0, dtype=torch.int64), torch.empty(0), torch.zeros(3, dtype=torch.int64), torch.zeros(2), None
    )
    table, squares = torch.ones(FEATURES, width), torch.zeros(FEATURES, 1)
    assert torch.equal(add_up(table, occurrences(empty)), torch.zeros(2, width))
    step_rows(table, squares, occurrences(empty), torch.ones(2, width), STEP)
    assert torch.equal(table, torch.ones(FEATURES, width))
