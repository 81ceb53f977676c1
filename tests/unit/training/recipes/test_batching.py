"""What a step is when there are fewer or more ranks than the recipe is for."""

from hypothesis import given
from hypothesis import strategies as st

from sparkdl.settings import Train
from sparkdl.training.recipes.batching import Batching, batching


def test_as_many_ranks_as_asked_for_do_what_the_recipe_says() -> None:
    assert batching(Train(batch_size=64, accumulation=3), size=8, reference=8) == Batching(64, 3, 1.0)


@given(st.integers(1, 64), st.integers(1, 4), st.integers(1, 16), st.integers(1, 16))
def test_the_rows_of_a_step_are_kept(batch_size: int, accumulation: int, size: int, reference: int) -> None:
    shape = batching(Train(batch_size=batch_size, accumulation=accumulation), size=size, reference=reference)
    wanted = batch_size * accumulation * reference
    rows = shape.batch_size * shape.accumulation * size
    assert wanted <= rows < wanted + size * (shape.accumulation + 1)
    assert shape.batch_size <= batch_size and shape.rate_factor == 1.0


def test_or_the_rate_follows_the_rows_of_a_step() -> None:
    settings = Train(batch_size=64, on_resize="scale_rate")
    assert batching(settings, size=2, reference=8) == Batching(64, 1, 0.25)
