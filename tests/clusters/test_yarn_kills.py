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


@pytest.fixture(autouse=True)
def whole(hadoop: Hadoop) -> Iterator[None]:
    """Each test finds all parts, and leaves them."""
    mend(hadoop)
    yield
    mend(hadoop)


def test_a_run_ends_with_the_same_weights_whatever_is_killed(
    pytestconfig: pytest.Config,
    hadoop: Hadoop,
    dataset: str,
    undisturbed: Mapping[str, torch.Tensor],
    tmp_path: Path,
) -> None:
    """``--kills`` says how many; first each kind once, and then what chance chooses."""
    chance, kills = random.Random(0), pytestconfig.getoption("kills")
    kinds = [*KINDS, *(chance.choice(list(KINDS)) for _ in range(kills - len(KINDS)))][:kills]
    while kinds:
        folder = tmp_path / f"{len(kinds)}-left"
        folder.mkdir()
        with training(hadoop, dataset, folder) as run:
            step = 10
            while kinds and step < LAST_STEP:
                run.wait_for_step(step)
                mend(hadoop)
                kind = kinds.pop(0)
                print(f"{time.strftime('%H:%M:%S')} step {run.step()}: {kind}", flush=True)
                KINDS[kind](hadoop)
                step = run.step() + BETWEEN_STEPS
            assert same(run.weights(), undisturbed)
