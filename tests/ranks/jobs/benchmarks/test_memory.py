"""``jobs/benchmark.py memory``: what its ranks train under a limit, and what is made of it."""

import re

import pytest

from benchmarks.memory import CASES, MB, Case, Found, extreme_rows, report, train
from sparkdl.data import Dataset

SMALL = Case(
    "40-16-4",
    {
        "model": "bag_of_words",
        "model_options": {"vocabulary": 40, "width": 16, "sparse": True},
        "optimizer": "torch.optim:Adagrad",
        "learning_rate": 0.1,
        "epochs": 2,
    },
    moments=1,
    limit=2_000 * MB,
    words=True,
)
TOO_LARGE = Case("4-16,000-16,000-4", {"model_options": {"hidden": (16_000, 16_000)}}, moments=0, limit=1_000 * MB)
"""Whose weights alone take 1,024 MB."""


def test_what_has_room_is_trained_registered_and_scored_and_what_has_none_says_so(
    clouds: Dataset, texts: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.memory.SIZE", 2)
    trained = train(texts, SMALL, "ist, sharded")
    told = re.fullmatch(
        r"trained: loss 1\..*, validation accuracy (\d\.\d+), of what is scored (.*); 0 MB registered, and (\d+) MB .*",
        trained.outcome,
    )
    assert told and told[1] == told[2] and float(told[1]) > 0.5 and int(told[3]) < 500
    assert isinstance(trained.peak, float) and 0 < trained.peak < 1_000
    assert train(clouds, TOO_LARGE, "allreduce") == Found("out of memory", "", "")


def test_the_table_says_how_far_beyond_the_limit_a_network_is_and_whether_each_ended_as_expected() -> None:
    nobody = Found("out of memory", "", "")
    found = [
        (case, case.limit, strategy, nobody) for case in CASES for strategy in (case.strategies[0], case.strategies[-1])
    ]
    table = report(found)
    assert [row[4] for row in table.rows] == [2, 2, 3, 3, 3, 3]  # Adagrad keeps one number of each weight, Adam two
    assert [target.reached for target in table.targets] == [True, False] * 3


def test_a_class_has_words_of_its_own_two_rows_to_train_on_and_some_have_one_to_validate_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.memory.CLASSES", 50)
    found = extreme_rows()
    to_train = [(label, "train") for label in range(50) for _ in range(2)]
    assert [(label, part) for label, _, part in found] == to_train + [(label, "validation") for label in range(5)]
    words = [{word for label, row, _ in found if label == number for word in row} for number in range(50)]
    assert all(len(row) == 20 for _, row, _ in found) and all(20 < len(each) <= 30 for each in words)
    assert all(1 <= word <= 500_000 and word == int(word) for each in words for word in each)
