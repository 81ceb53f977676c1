"""What is minimised, and how much each row counts in it."""

import copy
import itertools
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from sparkdl.data import Batch
from sparkdl.errors import ConfigError
from sparkdl.settings import Train
from sparkdl.training.evaluation import add_up, evaluation_of
from sparkdl.training.recipes.losses import build_loss
from sparkdl.training.tasks import Classification, MultiLabel, Regression

CLASSES, ROWS = 3, 50
RANDOM = torch.Generator().manual_seed(0)
OUTPUTS = torch.randn(ROWS, CLASSES, generator=RANDOM)
LABELS = torch.randint(CLASSES, (ROWS,), generator=RANDOM)
WEIGHTS = torch.rand(ROWS, generator=RANDOM, dtype=torch.float64)
OF_CLASSES = torch.tensor([1.0, 3.0, 0.5])


def test_label_smoothing_is_for_training_only():
    outputs, labels = torch.tensor([[4.0, 0.0]]), torch.tensor([0])
    settings = Train(label_smoothing=0.2)
    smoothed, plain = (build_loss(settings, Classification(2), smoothing=smoothing) for smoothing in (True, False))
    assert smoothed(outputs, labels, None) > plain(outputs, labels, None)


@pytest.mark.parametrize("task", [Classification(2), MultiLabel(2), Regression(3.0, 2.0)], ids=lambda task: task.name)
def test_a_row_that_weighs_twice_counts_as_two(task):
    outputs, labels = torch.randn(3, task.outputs), task.some_labels(torch.zeros(3, 1))
    loss = build_loss(Train(), task)
    twice = torch.tensor([0, 1, 2, 2])
    weights = torch.tensor([1.0, 1.0, 2.0]) * 3 / 4
    torch.testing.assert_close(loss(outputs, labels, weights), loss(outputs[twice], labels[twice], None))
    torch.testing.assert_close(
        task.sums(outputs, labels, torch.tensor([1.0, 1.0, 2.0])).double(),
        task.sums(outputs[twice], labels[twice], None).double(),
    )


def test_label_smoothing_with_another_loss_is_an_error():
    with pytest.raises(ConfigError, match="label_smoothing"):
        build_loss(Train(loss="multi_margin_loss", label_smoothing=0.1), Classification(2))


def evaluated(settings, weights=None, task=None):
    """The loss that an evaluation in batches of different sizes finds."""
    task = task or Classification(CLASSES)
    cuts = [0, 7, 8, 31, ROWS]
    batches = [
        Batch(OUTPUTS[start:end], LABELS[start:end], end - start, None if weights is None else weights[start:end])
        for start, end in itertools.pairwise(cuts)
    ]
    loss = build_loss(settings, task)
    device, context = torch.device("cpu"), nullcontext()
    sums = add_up(nn.Identity(), batches, task=task, loss=loss, device=device, context=context, parts=1)
    return evaluation_of(sums.added, [sums.points], task).figures["loss"]


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(weight=OF_CLASSES),
        partial(functional.cross_entropy, weight=OF_CLASSES),
        nn.CrossEntropyLoss(weight=OF_CLASSES, ignore_index=1),
        partial(functional.cross_entropy, ignore_index=2),
        functional.cross_entropy,
        nn.MultiMarginLoss(weight=OF_CLASSES),
    ],
    ids=[
        *("module, weights", "partial, weights", "module, weights, ignored class", "partial, ignored class"),
        *("function", "another loss, weights"),
    ],
)
def test_the_loss_of_an_evaluation_is_that_of_all_rows_at_once(loss):
    assert evaluated(Train(loss=loss)) == pytest.approx(loss(OUTPUTS, LABELS).item(), rel=1e-6)


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["all alike", "weighted"])
def test_class_weights_of_a_loss_and_weights_of_rows_go_together(weights):
    by_row = functional.cross_entropy(OUTPUTS, LABELS, reduction="none").numpy()
    expected = np.average(by_row, weights=OF_CLASSES[LABELS].double() * (1 if weights is None else weights))
    for loss in (nn.CrossEntropyLoss(weight=OF_CLASSES), partial(functional.cross_entropy, weight=OF_CLASSES)):
        assert evaluated(Train(loss=loss), weights) == pytest.approx(expected, rel=1e-6)
        twice, counts = torch.tensor([0, 1, 2, 2]), torch.tensor([1.0, 1.0, 2.0]) * 3 / 4
        found = build_loss(Train(loss=loss), Classification(CLASSES))(OUTPUTS[:3], LABELS[:3], counts)
        torch.testing.assert_close(found, loss(OUTPUTS[twice], LABELS[twice]))


class Twice(nn.Module):
    """A loss of the user's own that holds another one."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.reduction = nn.CrossEntropyLoss(weight=OF_CLASSES), "mean"

    def forward(self, outputs, labels):
        return 2 * functional.cross_entropy(outputs, labels, self.inner.weight, reduction=self.reduction)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(weight=OF_CLASSES),
        partial(functional.cross_entropy, weight=OF_CLASSES),
        partial(partial(functional.cross_entropy, weight=OF_CLASSES), ignore_index=2),
        Twice(),
    ],
    ids=["module", "function", "function of a function", "module in a module"],
)
def test_what_a_loss_holds_is_where_outputs_are(loss):
    """``meta`` stands for a GPU: PyTorch refuses to compute with tensors of both it and the CPU."""
    found = build_loss(Train(loss=copy.deepcopy(loss)), Classification(CLASSES), device="meta")
    rows = [each.to("meta") for each in (OUTPUTS, LABELS, WEIGHTS)]
    with pytest.raises(RuntimeError, match="device"):
        loss(*rows[:2])
    for weights in (None, rows[2]):
        assert found(*rows[:2], weights).device.type == "meta"
        assert {each.device.type for each in found.add_up(*rows[:2], weights)} == {"meta"}


TEACHER = 3 * torch.randn(ROWS, CLASSES, generator=RANDOM)


def learned(outputs, labels, teacher, *, task, weights=None, **settings):
    """The loss with a teacher at temperature 2."""
    chosen = Train(teacher={"model": "models:/large/1", "temperature": 2, **settings})
    return build_loss(chosen, task)(outputs, labels, weights, teacher=teacher)


def test_the_loss_with_a_teacher_is_a_mean_of_that_of_labels_and_of_the_softened_divergence():
    hard = functional.cross_entropy(OUTPUTS, LABELS)
    theirs, ours = (torch.log_softmax(each / 2, dim=1) for each in (TEACHER, OUTPUTS))
    soft = 4 * (theirs.exp() * (theirs - ours)).sum(dim=1).mean()
    found = learned(OUTPUTS, LABELS, TEACHER, task=Classification(CLASSES), weight=0.3)
    torch.testing.assert_close(found, 0.3 * soft + 0.7 * hard)
    torch.testing.assert_close(learned(OUTPUTS, LABELS, TEACHER, task=Classification(CLASSES), weight=1), soft)
    without = build_loss(Train(teacher={"model": "models:/large/1"}), Classification(CLASSES))(OUTPUTS, LABELS)
    torch.testing.assert_close(without, hard)  # as in evaluation


@pytest.mark.parametrize("task", [Classification(CLASSES), MultiLabel(CLASSES)], ids=lambda task: task.name)
def test_with_a_teacher_too_a_row_that_weighs_twice_counts_as_two(task):
    outputs, teacher, labels = OUTPUTS[:3], TEACHER[:3], task.some_labels(torch.zeros(3, 1))
    twice, weights = torch.tensor([0, 1, 2, 2]), torch.tensor([1.0, 1.0, 2.0]) * 3 / 4
    torch.testing.assert_close(
        learned(outputs, labels, teacher, weights=weights, task=task),
        learned(outputs[twice], labels[twice], teacher[twice], task=task),
    )


@pytest.mark.parametrize("task", [Classification(CLASSES), MultiLabel(CLASSES)], ids=lambda task: task.name)
def test_there_is_nothing_to_learn_from_a_teacher_that_answers_the_same(task):
    outputs = TEACHER.clone().requires_grad_()
    labels = task.some_labels(torch.zeros(ROWS, 1))
    found = learned(outputs, labels, TEACHER, task=task, weight=1)
    assert found.item() == pytest.approx(0, abs=1e-6)
    found.backward()
    assert float(outputs.grad.abs().max()) < 1e-7
