"""``jobs/benchmark.py batches``: what its ranks train, and what is made of it."""

import pytest

from benchmarks.batches import BACKEND, METHODS, Outcome, Results, Training, report
from sparkdl.cluster import run_local
from sparkdl.data import Dataset
from sparkdl.settings.gradient_noise import FisherDiagonalOptions


def test_a_training_with_noise_learns_and_tells_how_it_ended(clouds: Dataset) -> None:
    settings = METHODS[-1].settings(0.05, seed=1)
    smaller = {"model": "mlp", "epochs": 3, "batch_size": 8, "gradient_noise": FisherDiagonalOptions(small_batch=4)}
    found = run_local(Training(clouds, settings.model_copy(update=smaller)), 1, backend=BACKEND)[0]
    assert found.validation > 0.6 and found.train_loss > 0 and found.test is None


def test_the_table_says_whether_the_papers_order_is_there() -> None:
    tests = [(0.83, 0.84, 0.85), (0.80, 0.81, 0.82), (0.82, 0.83, 0.84), (0.79, 0.80, 0.95)]
    found = [
        Results(method, 0.1, [Outcome(0.5, 0.9, each) for each in of_seeds])
        for method, of_seeds in zip(METHODS, tests, strict=True)
    ]
    table = report(found, tries=3)
    assert table.rows[1][3] == "81.0% (80.0% to 82.0%)"
    assert [target.reached for target in table.targets] == [True, False]
    assert [target.value for target in table.targets] == pytest.approx([2, -3])
