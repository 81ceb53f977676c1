"""What YARN and HDFS lose while a training runs on them: it goes on, and ends with the weights of one left alone."""

import random
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch

from .hadoop import Hadoop
from .kills import KINDS, mend
from .trainings import same, training

BETWEEN_STEPS = 12
"""From one kill to the next one there are new checkpoints: each is the first of its attempt."""
LAST_STEP = 80
"""A run that has come so far is left alone, and the next one takes the kills that are left."""
A_TEST = 6
"""So many kills are a test of their own, which has a time limit of its own."""


@pytest.fixture(autouse=True)
def whole(hadoop: Hadoop) -> Iterator[None]:
    """Each test finds all parts, and leaves them."""
    mend(hadoop)
    yield
    mend(hadoop)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """``--kills`` says how many: first each kind once, and then what chance chooses; a test for each few of them."""
    if "kinds" in metafunc.fixturenames:
        chance, kills = random.Random(0), metafunc.config.getoption("kills")
        kinds = [*KINDS, *(chance.choice(list(KINDS)) for _ in range(kills - len(KINDS)))][:kills]
        names = [f"{first + 1}-{min(first + A_TEST, kills)}" for first in range(0, kills, A_TEST)]
        metafunc.parametrize("kinds", [kinds[first : first + A_TEST] for first in range(0, kills, A_TEST)], ids=names)


def test_a_run_ends_with_the_same_weights_whatever_is_killed(
    kinds: list[str],
    hadoop: Hadoop,
    dataset: str,
    undisturbed: Mapping[str, torch.Tensor],
    tmp_path: Path,
) -> None:
    left = list(kinds)
    while left:
        folder = tmp_path / f"{len(left)}-left"
        folder.mkdir()
        with training(hadoop, dataset, folder) as run:
            step = 10
            while left and step < LAST_STEP:
                run.wait_for_step(step)
                mend(hadoop)
                kind = left.pop(0)
                print(f"{time.strftime('%H:%M:%S')} step {run.step()}: {kind}", flush=True)
                KINDS[kind](hadoop)
                step = run.step() + BETWEEN_STEPS
            assert same(run.weights(), undisturbed)
