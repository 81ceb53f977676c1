"""What the gradients of ranks say of the batch size, from gradients whose noise is known."""

import pytest
import torch
from torch import nn

from sparkdl.collectives import Communicator, GradientAverager, GradientNoise, Ring

from .averaging.threads import on_threads

SIZE, ROWS, STEPS, DIMENSIONS = 4, 8, 50, 1_000
NOISE = 0.2  # the standard deviation of each number in the gradient of one row


def drawn(rank: int, step: int) -> torch.Tensor:
    """The gradient of a rank: that of all rows, which has the norm 1, and the noise of its own."""
    random = torch.Generator().manual_seed(SIZE * step + rank)
    return DIMENSIONS**-0.5 + NOISE * ROWS**-0.5 * torch.randn(DIMENSIONS, generator=random)


def measured(communicator: Communicator) -> dict[str, float]:
    noise = GradientNoise(communicator)
    for step in range(STEPS):
        gradients = [drawn(rank, step) for rank in range(SIZE)]
        noise.begin_step(SIZE * ROWS)
        noise.before(gradients[communicator.rank].split(300))  # in buckets
        noise.after(torch.stack(gradients).mean(0).split(700))
    noise.begin_step(SIZE * ROWS - 1)  # a short step at the end of an epoch does not count
    noise.before([torch.full((DIMENSIONS,), torch.nan)])
    noise.after([torch.full((DIMENSIONS,), torch.nan)])
    return noise.figures()


def test_the_noise_scale_is_the_variance_of_a_row_over_the_true_gradient() -> None:
    found = on_threads(SIZE, measured)
    assert all(each == found[0] for each in found)
    assert found[0]["gradient_noise_scale"] == pytest.approx(DIMENSIONS * NOISE**2, rel=0.1)


def test_diversity_is_what_gradients_do_not_have_in_common() -> None:
    of_a_rank, of_the_mean = (1 + DIMENSIONS * NOISE**2 / rows for rows in (ROWS, SIZE * ROWS))
    found = on_threads(SIZE, measured)[0]["gradient_diversity"]
    assert found == pytest.approx(of_a_rank / of_the_mean, rel=0.05)


def alike(communicator: Communicator) -> dict[str, float]:
    noise = GradientNoise(communicator)
    noise.begin_step(SIZE * ROWS)
    noise.before([torch.ones(3)])
    noise.after([torch.ones(3)])
    return noise.figures()


def test_ranks_that_say_the_same_are_not_diverse_and_a_single_one_cannot_tell() -> None:
    assert on_threads(SIZE, alike)[0] == pytest.approx({"gradient_diversity": 1.0, "gradient_noise_scale": 0.0})
    assert on_threads(1, alike) == [{}]


def measured_with_an_overflow(communicator: Communicator) -> dict[str, float]:
    noise = GradientNoise(communicator)
    for step in range(2):
        noise.begin_step(SIZE * ROWS)
        overflows = step == 0 and communicator.rank == 1
        noise.before([torch.full((3,), torch.inf if overflows else 1.0)])
        noise.after([torch.full((3,), 1.0 if step else torch.inf)])
    return noise.figures()


def test_a_step_that_overflowed_on_one_rank_counts_on_none() -> None:
    found = on_threads(SIZE, measured_with_an_overflow)
    assert found == [pytest.approx({"gradient_diversity": 1.0, "gradient_noise_scale": 0.0})] * SIZE


def measured_alone(communicator: Communicator) -> dict[str, float]:
    model, noise = nn.Linear(3, 1), GradientNoise(communicator)
    averager = GradientAverager(model.parameters(), Ring(communicator), noise=noise)
    noise.begin_step(ROWS)
    averager.begin_last_pass()
    model(torch.ones(ROWS, 3)).sum().backward()
    averager.finish()
    return noise.figures()


def test_a_rank_that_is_alone_has_nobody_to_differ_from() -> None:
    assert on_threads(1, measured_alone) == [{}]
