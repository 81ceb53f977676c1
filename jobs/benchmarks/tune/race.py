"""Seconds until a trial reaches an accuracy: random search with whole trials, and TPE with ASHA."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.report import Report, Target
from benchmarks.tune.searching import SLOTS, Place, Searched, place, search, spread, warm_up

__all__ = ["run"]

ACCURACY = 0.915
LIMIT_SECONDS = 600.0
"""A search that has not reached it by then counts as so long."""
TRAIN: dict[str, Any] = {"model": "cnn", "epochs": 9, "optimizer": "adamw"}
SPACE: dict[str, Any] = {
    "train.learning_rate": {"log": [1e-5, 1.0]},
    "train.weight_decay": {"log": [1e-4, 1.0]},
    "train.batch_size": [32, 64, 128],
    "train.model_options.channels": [[8, 16], [16, 32], [32, 64]],
    "train.model_options.dropout": {"linear": [0, 0.8]},
}
METHODS: dict[str, dict[str, Any]] = {
    "random, whole trials": {"sampler": "random"},
    "TPE, ASHA": {"sampler": "tpe", "stopping": {"kind": "asha", "min_epochs": 1, "reduction": 3}},
}


def run(*, seeds: Sequence[int] = (0,)) -> Report:
    """Runs on the driver: some ten minutes for each seed."""
    found: dict[str, list[Searched]] = {name: [] for name in METHODS}
    with place() as where:
        warm_up(where)
        for seed in seeds:
            for name, options in METHODS.items():
                found[name].append(_search(where, options, seed))
    seconds = {name: [each.seconds for each in searches] for name, searches in found.items()}
    slow, fast = seconds.values()
    return Report(
        title=f"tune: seconds to {ACCURACY:.1%} of validation, cnn on Fashion-MNIST, {SLOTS} slots, {len(seeds)} seeds",
        columns=["search", "median s", "from", "to", "reached", "trials", "epochs"],
        rows=[
            [
                name,
                *spread(seconds[name]),
                f"{sum(each.best >= ACCURACY for each in searches)} of {len(seeds)}",
                median(len(each.tuned.trials) for each in searches),
                median(sum(record.epochs for record in each.tuned.trials) for each in searches),
            ]
            for name, searches in found.items()
        ],
        targets=[Target("times sooner", median(slow) / median(fast), 3)],
        note=f"A search ends with the epoch that reaches it, or with the trials that run after {LIMIT_SECONDS:g} s.",
    )


def _search(where: Place, options: dict[str, Any], seed: int) -> Searched:
    train = {**TRAIN, "target": {"metric": "validation_accuracy", "value": ACCURACY}}
    tune = {"space": SPACE, "trials": 500, "seconds": LIMIT_SECONDS, "seed": seed, **options}
    return search(where, train=train, tune=tune)
