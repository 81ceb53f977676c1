"""A run that was interrupted ends as if nothing had happened. Real ranks, as processes on this machine."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Backend
from sparkdl.data import Dataset
from sparkdl.data.teacher_answers import TeacherAnswers
from sparkdl.settings import Train
from sparkdl.settings.gradient_noise import FisherDiagonalOptions
from sparkdl.training.checkpoints.checkpoint import Manifest, load_manifest, save_manifest
from sparkdl.training.checkpoints.checkpoint_folder import latest
from sparkdl.training.job import Job
from sparkdl.training.loop import train_rank

from .interruptions import assert_equal, interrupt, states_of


def network(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Draws random numbers in every step, and each rank has running means of its own; a buffer is not finite."""
    layers = nn.Sequential(
        nn.Linear(*input_shape, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, num_classes)
    )
    layers.register_buffer("mask", torch.full((2,), -torch.inf))
    return layers


SETTINGS = Train(model=network, epochs=3, batch_size=4, accumulation=2, learning_rate=0.01, checkpoint_steps=3)
UNEQUAL = {"rows_per_second": 0, "seconds": 0}  # figures that depend on the hour
STEPS_PER_EPOCH = 5  # 106 rows, three ranks, two batches of four rows each


def interrupted_and_continued(job: Job, calls: list[int], rank: Rank) -> None:
    """One run without an interruption, and one for each of ``calls`` that is interrupted once and continued."""
    train_rank(job, rank)
    for number, count in enumerate(calls):
        folder = f"{job.folder}-{number}"
        interrupt(replace(job, folder=folder), rank, at=count)
        train_rank(replace(job, folder=folder, checkpoint=latest(folder)), rank)


@pytest.mark.parametrize(
    ("changes", "calls"),
    [
        ({}, [1, 9, 16, 23]),  # before the first checkpoint, in the first epoch, in the second, in the third
        ({"optimizer": "lamb", "weight_decay": 0.1}, [16]),
        ({"model": "mlp", "gradient_noise": FisherDiagonalOptions()}, [16]),
        (
            {
                "teacher": {"model": "models:/large/1"},
                "pruning": {"kind": "magnitude", "end_epoch": 2},
            },
            [16],
        ),
    ],
    ids=["adamw", "lamb", "noise", "smaller"],
)
def test_three_ranks_that_were_interrupted_anywhere_end_with_the_same_weights_to_the_last_bit(
    backend: Backend, clouds: Dataset, tmp_path: pytest.TempPathFactory, changes: dict[str, object], calls: list[int]
) -> None:
    folder = f"{tmp_path}/run"
    answers = TeacherAnswers(f"{tmp_path}/teacher", 4)
    for number, group in enumerate(clouds.row_groups("train")):
        answers.write(number, np.random.default_rng(number).normal(size=(group.rows, 4)))
    dataset = replace(clouds, answers=answers)
    job = Job(dataset, SETTINGS.model_copy(update=changes), folder, backend, reference=3)
    run_local(partial(interrupted_and_continued, job, calls), 3, backend=backend)
    whole, states = last_checkpoint(folder)
    assert whole.step == 3 * STEPS_PER_EPOCH
    for number in range(len(calls)):
        continued, continued_states = last_checkpoint(f"{folder}-{number}")
        assert_equal(continued_states, states)
        assert continued.best_epoch == whole.best_epoch
        for ours, theirs in zip(continued.history, whole.history, strict=True):
            assert ours | UNEQUAL == theirs | UNEQUAL
    if "pruning" in changes:
        assert [int((states[0]["model"][name] == 0).sum()) for name in ("0.weight", "4.weight")] == [51, 51]
        assert whole.best_epoch == 2


def last_checkpoint(folder: str) -> tuple[Manifest, list[dict]]:
    """Its manifest, what is shared, and what is each rank's own."""
    return load_manifest(str(latest(folder))), states_of(folder)


def test_another_number_of_ranks_goes_on_where_the_first_stopped(
    backend: Backend, clouds: Dataset, tmp_path: object
) -> None:
    """With weights that stay as they are, an epoch's loss is the same if every row has counted once."""
    still = {"model": "mlp", "learning_rate": 1e-12, "weight_decay": 0.0}
    settings = SETTINGS.model_copy(update={"checkpoint_steps": 1, **still})
    job = Job(clouds, settings, f"{tmp_path}/run", backend, reference=3)
    run_local(partial(interrupt, job, at=16), 3, backend=backend)
    job = replace(job, checkpoint=latest(job.folder))
    assert load_manifest(str(job.checkpoint)).batches > 0  # in the middle of an epoch
    outcome = run_local(partial(train_rank, job), 2, backend=backend)[0]
    assert outcome is not None
    for figure in ("train_loss", "train_accuracy"):
        by_three, by_both, by_two = (epoch[figure] for epoch in outcome.history)
        assert by_both == pytest.approx(by_three, rel=1e-6) and by_two == pytest.approx(by_three, rel=1e-6)


def test_a_run_of_very_many_epochs_goes_on(backend: Backend, clouds: Dataset, tmp_path: object) -> None:
    settings = SETTINGS.model_copy(update={"epochs": 1, "checkpoint_steps": None})
    job = Job(clouds, settings, f"{tmp_path}/run", backend, reference=1)
    run_local(partial(train_rank, job), 1, backend=backend)
    manifest, epochs = load_manifest(str(latest(job.folder))), 6_000
    longer = {"epoch": epochs, "history": manifest.history * epochs, "step": manifest.step + 1}
    checkpoint = save_manifest(job.folder, manifest.model_copy(update=longer))
    job = replace(job, settings=settings.model_copy(update={"epochs": epochs + 1}), checkpoint=checkpoint)
    outcome = run_local(partial(train_rank, job), 1, backend=backend)[0]
    assert outcome is not None and len(outcome.history) == epochs + 1
