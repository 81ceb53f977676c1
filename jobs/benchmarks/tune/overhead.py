"""What a trial costs that has next to nothing to train: its start, its records and its end, one trial after another."""

from statistics import median

from benchmarks.report import Report, Target
from benchmarks.tune.searching import Place, Searched, place, search

__all__ = ["run"]

FEW, MANY, ROUNDS = 4, 24, 3
PART = 0.02
"""About 1,200 images, with which an epoch of a small perceptron takes hundredths of a second."""


def run() -> Report:
    """What a search of many trials takes longer than one of a few, for each trial that it has more.

    Runs on the driver.
    """
    overheads, slots = [], []
    with place(PART) as where:
        _search(where, FEW, seed=0)  # which starts Python workers
        for seed in range(ROUNDS):
            few, many = (_search(where, trials, seed=seed) for trials in (FEW, MANY))
            trials = many.tuned.trials[FEW:]
            trained = [sum(figures["seconds"] for figures in record.history) for record in trials]
            overheads.append((many.seconds - few.seconds) / (MANY - FEW) - median(trained))
            slots += [record.seconds - seconds for record, seconds in zip(trials, trained, strict=True)]
    return Report(
        title=f"tune: a trial of no work, one at a time, {ROUNDS} searches of {MANY} trials and of {FEW}",
        columns=["beside training and evaluating", "median s", "from", "to"],
        rows=[
            ["a trial, all in all", median(overheads), min(overheads), max(overheads)],
            ["of which on its slot", median(slots), min(slots), max(slots)],
        ],
        targets=[Target("seconds of a trial's overhead", median(overheads), 0.7, at_most=True)],
    )


def _search(where: Place, trials: int, *, seed: int) -> Searched:
    train = {"model": "mlp", "model_options": {"hidden": [8]}, "batch_size": 512, "epochs": 1}
    tune = {"space": {"train.learning_rate": {"log": [1e-4, 1e-1]}}, "sampler": "random", "at_a_time": 1}
    return search(where, train=train, tune={**tune, "trials": trials, "seed": seed})
