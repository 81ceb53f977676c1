"""What the settings decide about labels: which of them the loss is given, what is predicted, how much classes count."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from sklearn.utils.class_weight import compute_class_weight
from torch import nn
from torch.nn import functional

from sparkdl.data.card_parts import LabelScale
from sparkdl.errors import ConfigError
from sparkdl.settings import Train
from sparkdl.training.recipes.losses import build_loss
from sparkdl.training.task_to_train import task_to_train

from ...conftest import write_vectors

EACH = torch.tensor([0, 1, 2])


@pytest.fixture
def card(tmp_path):
    """Of 20 rows of three classes, 14, 4 and 2 of each."""
    labels = np.repeat([0, 1, 2], [14, 4, 2])
    rows = [(np.zeros((10, 2)), labels[::2]), (np.zeros((10, 2)), labels[1::2])]
    return write_vectors(tmp_path / "dataset", {"train": rows}, label_names=("a", "true", "2")).card


def test_balanced_class_weights_are_those_of_scikit_learn(card):
    settings, labels = Train(class_weights="balanced"), np.repeat([0, 1, 2], [14, 4, 2])
    task = task_to_train(card, settings)
    expected = compute_class_weight("balanced", classes=np.arange(3), y=labels)
    assert task.loss_weights(EACH, None).tolist() == pytest.approx(expected.tolist())
    outputs = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    for weights in (None, torch.arange(20.0, dtype=torch.float64)):
        counted = expected[labels] * (1.0 if weights is None else weights.numpy())
        loss, count = build_loss(settings, task).add_up(outputs, torch.tensor(labels), weights)
        theirs = log_loss(labels, outputs.double().softmax(dim=1), sample_weight=counted)
        assert (loss / count).item() == pytest.approx(theirs, rel=1e-6)
    minimised = build_loss(settings, task)(outputs, torch.tensor(labels), None)
    by_row = functional.cross_entropy(outputs, torch.tensor(labels), reduction="none").double()
    assert minimised.item() == pytest.approx((by_row * expected[labels]).mean().item(), rel=1e-6)


def test_of_class_weights_only_the_ratios_matter_and_labels_are_named_as_yaml_has_them(card):
    for weights in ({True: 4, 2: 10}, {"a": 2, "true": 8, "2": 20}):
        found = task_to_train(card, Train(class_weights=weights)).loss_weights(EACH, None)
        assert found.tolist() == pytest.approx([20 / 50, 80 / 50, 200 / 50])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"class_weights": {"b": 2}}, r"class_weights: there is no label 'b'; known here: a, true, 2"),
        ({"standardise_labels": True}, "standardise_labels is for regression, but the dataset is for classification"),
    ],
)
def test_what_does_not_fit_the_labels_is_an_error(card, settings, says):
    with pytest.raises(ConfigError, match=says):
        task_to_train(card, Train(**settings))


@pytest.fixture
def numbers(tmp_path):
    rows = [(np.zeros((4, 2)), np.array([1.0, 2.0, 3.0, 4.0]))]
    card = {"task": "regression", "label_names": (), "label_scale": LabelScale(mean=2.2, std=1.5)}
    return write_vectors(tmp_path / "numbers", {"train": rows}, **card).card


def own_loss(outputs, labels):
    return functional.mse_loss(outputs, labels)


def _name(loss: object) -> str:
    """The same in all processes of a test run, as the address of a function is not."""
    return getattr(loss, "__name__", str(loss))


@pytest.mark.parametrize("loss", [None, "mse_loss", "l1_loss", functional.l1_loss, nn.MSELoss()], ids=_name)
def test_labels_are_standardised_for_a_loss_that_is_the_same_in_any_unit(numbers, loss):
    labels = torch.tensor([2.2, 3.7], dtype=torch.float64)
    task = task_to_train(numbers, Train(loss=loss))
    assert task.targets(labels).flatten().tolist() == pytest.approx([0.0, 1.0])
    assert task.values(torch.tensor([[0.0], [1.0]])).flatten().tolist() == pytest.approx([2.2, 3.7])
    assert task.kept_with_models() == {}
    assert task.loss_unit == ("standard deviations" if "l1" in str(loss) else "variances") + " of the label"
    as_they_are = task_to_train(numbers, Train(loss=loss, standardise_labels=False))
    assert as_they_are.targets(labels).flatten().tolist() == pytest.approx([2.2, 3.7])
    assert as_they_are.loss_unit == ""


@pytest.mark.parametrize("loss", ["huber_loss", "smooth_l1_loss", own_loss, nn.HuberLoss(delta=2.0)], ids=_name)
def test_any_other_loss_is_given_labels_as_they_are(numbers, loss):
    labels, outputs = torch.tensor([2.0, 7.0], dtype=torch.float64), torch.tensor([[3.0], [5.0]])
    task = task_to_train(numbers, Train(loss=loss))
    assert task.targets(labels).tolist() == [[2.0], [7.0]]
    assert task.values(outputs).tolist() == outputs.tolist()
    assert task.figures(task.sums(outputs, labels, None).tolist(), 2.0)["mae"] == pytest.approx(1.5)
    assert task.kept_with_models() == {"label_scale": None, "link": "identity"}
    asked = task_to_train(numbers, Train(loss=loss, standardise_labels=True))
    assert asked.targets(labels).flatten().tolist() == pytest.approx([-0.2 / 1.5, 4.8 / 1.5])


def test_the_loss_of_counts_predicts_the_exponential_of_what_the_network_answers(numbers):
    outputs, labels = torch.tensor([[0.0], [1.0]]), torch.tensor([1.0, 3.0], dtype=torch.float64)
    for loss in ("poisson_nll_loss", functional.poisson_nll_loss, nn.PoissonNLLLoss()):
        task = task_to_train(numbers, Train(loss=loss))
        assert task.targets(labels).tolist() == [[1.0], [3.0]]
        assert task.values(outputs).flatten().tolist() == pytest.approx([1.0, np.e])
        assert task.figures(task.sums(outputs, labels, None).tolist(), 2.0)["mae"] == pytest.approx((3 - np.e) / 2)
        assert task.kept_with_models() == {"label_scale": None, "link": "log"}
    rates = task_to_train(numbers, Train(loss=partial(functional.poisson_nll_loss, log_input=False)))
    assert rates.values(outputs).tolist() == outputs.tolist()
    with pytest.raises(ConfigError, match="the loss poisson_nll_loss is for counts"):
        task_to_train(numbers, Train(loss="poisson_nll_loss", standardise_labels=True))
    with pytest.raises(ConfigError, match="class_weights is for classification, but the dataset is for regression"):
        task_to_train(numbers, Train(class_weights="balanced"))
