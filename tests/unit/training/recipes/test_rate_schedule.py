"""The learning rates of an epoch, whoever takes its steps."""

import pytest

from sparkdl.settings import Train
from sparkdl.training.recipes.rate_schedule import RateSchedule

LINEAR = Train(epochs=2, batch_size=4, learning_rate=1.0, schedule="linear")


def test_an_epoch_of_the_recipe_s_ranks_has_the_recipe_s_rates() -> None:
    schedule = RateSchedule(LINEAR, epoch=1, rows=80, rows_left=80, steps=10, reference=2)
    assert [schedule.rate(number) for number in range(10)] == pytest.approx([0.5 - 0.05 * step for step in range(10)])
    assert [schedule.epochs(number) for number in (0, 5, 10)] == pytest.approx([1, 1.5, 2])


def test_half_as_many_ranks_take_twice_the_steps_at_rates_between_the_same_ends() -> None:
    schedule = RateSchedule(LINEAR, epoch=0, rows=80, rows_left=80, steps=20, reference=2)
    assert [schedule.rate(number) for number in range(20)] == pytest.approx([1 - 0.025 * step for step in range(20)])


def test_the_rest_of_an_epoch_goes_on_from_the_rate_that_its_first_rows_have_reached() -> None:
    schedule = RateSchedule(LINEAR, epoch=0, rows=80, rows_left=20, steps=5, reference=2)
    assert schedule.rate(0) == pytest.approx(1 - 0.75 / 2)
    assert [schedule.epochs(number) for number in (0, 5)] == pytest.approx([0.75, 1])
