"""Each task's figures beside scikit-learn's, what is predicted, and pictures."""

import io
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn import metrics

from sparkdl.data.card_parts import LabelScale
from sparkdl.data.model_card import ModelCard
from sparkdl.settings import Train
from sparkdl.settings.target import FigureName
from sparkdl.training.recipes.losses import build_loss
from sparkdl.training.tasks import Classification, MultiLabel, Ranking, Regression, Task, create_task
from sparkdl.training.tasks.areas import POINTS, Scores, curves, joined

ROWS, CLASSES = 200, 5
RANDOM = torch.Generator().manual_seed(0)
NAMES = pa.array(["a", "b", "c", "d", "e"])


def figures(task: Task, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None) -> dict:
    """Found in two parts, as two ranks do."""
    parts = [slice(0, 70), slice(70, None)]
    sums = sum(task.sums(outputs[part], labels[part], None if weights is None else weights[part]) for part in parts)
    weight = float(len(labels) if weights is None else weights.sum())
    found = [counts_of(task, outputs[p], labels[p], None if weights is None else weights[p], parts=2) for p in parts]
    counts = sum(counts for counts, _ in found)
    together = np.concatenate([counts, joined([points for _, points in found]).flatten()])
    return task.figures(sums.tolist(), weight) | task.counted_figures(together, weight)


def counted(task: Task, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None) -> np.ndarray:
    """What evaluation finds of some rows beside their sums."""
    counts, points = counts_of(task, outputs, labels, weights, parts=1)
    return np.concatenate([counts, points.flatten()])


def counts_of(
    task: Task, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None, *, parts: int
) -> tuple[np.ndarray, torch.Tensor]:
    counts, scores = torch.zeros(task.count_size, dtype=torch.float64), Scores(parts=parts, device=torch.device("cpu"))
    task.count(counts, outputs, labels, weights)
    if task.has_curves:
        for batch in torch.arange(len(labels)).split(100_000):
            scores.add(outputs[batch], labels[batch], None if weights is None else weights[batch])
    return counts.numpy(), scores.points()


def test_regression_finds_the_figures_that_scikit_learn_does_with_weights_and_without() -> None:
    true = torch.randn(ROWS, generator=RANDOM, dtype=torch.float64) * 3 + 1e6
    task = Regression(mean=float(true.mean()), std=float(true.std(correction=0)))
    outputs = task.targets(true) + 0.5 * torch.randn(ROWS, 1, generator=RANDOM)
    (predicted,) = task.answers(outputs, NAMES, top_k=1)
    for weights in (None, torch.rand(ROWS, generator=RANDOM)):
        found = figures(task, outputs, true, weights)
        options = {"sample_weight": None if weights is None else weights.numpy()}
        assert found["r2"] == pytest.approx(metrics.r2_score(true, predicted.to_numpy(), **options), abs=1e-6)
        squared = metrics.mean_squared_error(true, predicted.to_numpy(), **options)
        assert found["rmse"] == pytest.approx(squared**0.5, rel=1e-6)
        assert found["mae"] == pytest.approx(metrics.mean_absolute_error(true, predicted.to_numpy(), **options))


def test_numbers_that_are_all_equal_have_figures_too() -> None:
    task, labels = Regression(mean=4.0, std=1.0), torch.full((3,), 4.0, dtype=torch.float64)
    assert figures(task, torch.zeros(3, 1), labels) == {"r2": 1.0, "rmse": 0.0, "mae": 0.0}
    assert figures(task, torch.ones(3, 1), labels)["r2"] == 0.0


def test_several_labels_have_the_figures_that_scikit_learn_finds() -> None:
    labels = (torch.rand(ROWS, CLASSES, generator=RANDOM) > 0.6).to(torch.uint8)
    outputs = torch.randn(ROWS, CLASSES, generator=RANDOM) + labels
    found = figures(MultiLabel(CLASSES), outputs, labels)
    with_class = labels.any(dim=1)
    expected = metrics.label_ranking_average_precision_score(labels[with_class], outputs[with_class])
    assert not with_class.all()
    assert found["mean_average_precision"] == pytest.approx(expected)
    assert found["f1"] == pytest.approx(metrics.f1_score(labels, outputs > 0, average="micro"))


def test_classification_counts_as_scikit_learn_does() -> None:
    outputs, labels = torch.randn(ROWS, CLASSES, generator=RANDOM), torch.randint(CLASSES, (ROWS,), generator=RANDOM)
    task, predicted = Classification(CLASSES), outputs.argmax(dim=1)
    assert figures(task, outputs, labels)["accuracy"] == metrics.accuracy_score(labels, predicted)
    counts = counted(task, outputs, labels)[4 * CLASSES + 2 :].reshape(CLASSES, CLASSES)
    assert counts.tolist() == metrics.confusion_matrix(labels, predicted).tolist()


@pytest.mark.parametrize("weights", [None, torch.rand(ROWS, generator=RANDOM).double()], ids=["all alike", "weighted"])
def test_classes_have_the_figures_that_scikit_learn_finds(weights: torch.Tensor | None) -> None:
    labels = torch.randint(7, (ROWS,), generator=RANDOM)
    outputs = torch.randn(ROWS, 8, generator=RANDOM)  # no row is of the last class
    options = {"sample_weight": weights}
    found, probabilities = figures(Classification(8), outputs, labels, weights), outputs.double().softmax(dim=1)
    predicted = outputs.argmax(dim=1)
    assert found["macro_f1"] == pytest.approx(metrics.f1_score(labels, predicted, average="macro", **options))
    theirs = metrics.top_k_accuracy_score(labels, outputs, k=5, labels=range(8), **options)
    assert found["top_5_accuracy"] == pytest.approx(theirs)
    assert found["log_loss"] == pytest.approx(metrics.log_loss(labels, probabilities, labels=range(8), **options))
    several, logits = torch.rand(ROWS, CLASSES, generator=RANDOM) > 0.6, torch.randn(ROWS, CLASSES, generator=RANDOM)
    found = figures(MultiLabel(CLASSES), logits, several.to(torch.uint8), weights)
    assert found["macro_f1"] == pytest.approx(metrics.f1_score(several, logits > 0, average="macro", **options))


SCORES = {
    "plain": torch.randn(5_000, generator=RANDOM, dtype=torch.float64) * 2,
    "ties": torch.randint(-3, 4, (5_000,), generator=RANDOM).double(),
    "saturated": torch.randn(5_000, generator=RANDOM, dtype=torch.float64) * 200,
    "close together": torch.randn(5_000, generator=RANDOM, dtype=torch.float64) * 0.001 - 4.6,
    "of all sizes": (torch.randn(5_000, generator=RANDOM, dtype=torch.float64) * 10).exp(),
    "few": torch.randn(100, generator=RANDOM, dtype=torch.float64) * 3,
    "alike": torch.full((200,), 1.5, dtype=torch.float64),
}


@pytest.mark.parametrize("weighted", [False, True], ids=["all alike", "weighted"])
@pytest.mark.parametrize("scores", SCORES)
def test_areas_under_the_curves_of_two_classes_are_those_of_scikit_learn(scores: str, weighted: bool) -> None:
    margins = SCORES[scores].float()
    rows = len(margins)
    spread = (margins - margins.mean()) / (margins.std() + 1e-9)
    labels = (spread + torch.randn(rows, generator=RANDOM) > 1).long()
    outputs = torch.stack([torch.zeros(rows), margins], dim=1)
    weights = torch.rand(rows, generator=RANDOM).double() if weighted else None
    found, options = figures(Classification(2), outputs, labels, weights), {"sample_weight": weights}
    assert found["area_under_roc"] == pytest.approx(metrics.roc_auc_score(labels, margins, **options), abs=1e-12)
    assert found["area_under_pr"] == pytest.approx(
        metrics.average_precision_score(labels, margins, **options), abs=1e-12
    )
    for name in ("precision", "recall", "f1"):
        theirs = getattr(metrics, f"{name}_score")(labels, margins > 0, zero_division=0, **options)
        assert found[name] == pytest.approx(theirs)


@pytest.mark.parametrize("parts", [1, 64])
def test_areas_of_more_rows_than_ranks_keep_apart_agree_to_four_digits(parts: int) -> None:
    rows, cpu = 600_000, torch.device("cpu")
    margins = torch.randn(rows, generator=RANDOM)
    labels = (margins + torch.randn(rows, generator=RANDOM) > 2.5).long()  # one in 25
    outputs = torch.stack([torch.zeros(rows), 0.05 * margins - 4.6], dim=1)
    scores = [Scores(parts=parts, device=cpu) for _ in range(parts)]
    for part, some in enumerate(scores):
        some.add(outputs[part::parts], labels[part::parts], None)
    points = joined([some.points() for some in scores])
    assert points.shape[1] <= max(POINTS, 4096 * parts) < rows
    shape = curves(points.numpy())
    assert shape is not None
    assert shape.area_under_roc == pytest.approx(metrics.roc_auc_score(labels, outputs[:, 1]), abs=1e-4)
    assert shape.area_under_pr == pytest.approx(metrics.average_precision_score(labels, outputs[:, 1]), abs=1e-4)


def test_of_one_class_there_is_no_area_under_a_curve() -> None:
    task, outputs, labels = Classification(2), torch.tensor([[0.0, 40.0], [0.0, -1.0]]), torch.tensor([1, 1])
    found = figures(task, outputs, labels)
    assert set(found) == {"accuracy", "precision", "recall", "f1", "log_loss"}
    assert (found["precision"], found["recall"]) == (1.0, 0.5)
    assert set(task.pictures(counted(task, outputs, labels), ["a", "b"])) == {"confusion"}
    rows = task.table(counted(task, outputs, labels), ["a", "b, or not"]).splitlines()
    assert rows == ["class,precision,recall,f1,rows", "a,0,0,0,0", '"b, or not",1,0.5,0.666667,2']


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_are_added_up_in_float64(dtype: torch.dtype) -> None:
    task, right = Classification(CLASSES), torch.arange(100_000) % 4 != 0
    labels = torch.zeros(len(right), dtype=torch.int64)
    outputs = torch.zeros(len(right), CLASSES)
    outputs[:, 1] = 1.0 - 2.0 * right.float()
    weights = torch.rand(len(right), generator=RANDOM, dtype=dtype)
    for some, expected in ((slice(None), np.average(right, weights=weights.double())), (right, 1.0)):
        sums = task.sums(outputs[some], labels[some], weights[some])
        accuracy = task.figures(sums.tolist(), float(weights[some].double().flip(0).sum()))["accuracy"]
        assert accuracy == pytest.approx(expected, rel=1e-14) and accuracy <= 1


def test_several_labels_are_predicted_where_they_are_likelier_than_not() -> None:
    outputs = torch.tensor([[-1.0, 2.0, 1.0, -3.0, -2.0], [-1.0, -2.0, -3.0, -4.0, -5.0]])
    predicted, top = MultiLabel(CLASSES).answers(outputs, NAMES, top_k=2)
    assert predicted.to_pylist() == [["b", "c"], []]
    assert [[pair["label"] for pair in row] for row in top.to_pylist()] == [["b", "c"], ["a", "b"]]
    assert top[0][0]["probability"].as_py() == pytest.approx(float(torch.tensor(2.0).sigmoid()))


GROUPS = [1, 3, 10, 11, 40]


def some_groups() -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Relevances of some groups, of which the last has none, as a batch has them, and scores."""
    groups = [torch.randint(5, (rows,), generator=RANDOM).double() for rows in GROUPS] + [torch.zeros(4).double()]
    labels = torch.nn.utils.rnn.pad_sequence(groups, batch_first=True, padding_value=-1.0)
    return groups, labels, torch.randn(sum(map(len, groups)), 1, generator=RANDOM)


def test_ranking_finds_the_figures_that_scikit_learn_does_with_weights_and_without() -> None:
    groups, labels, outputs = some_groups()
    scores = outputs.split([len(group) for group in groups])
    gains = [(group.exp2() - 1).unsqueeze(0).numpy() for group in groups]
    pairs = [(gain, score.T.numpy()) for gain, score in zip(gains, scores, strict=True)]
    ndcg = [metrics.ndcg_score(*pair, k=10) if pair[0].size > 1 and pair[0].any() else 1.0 for pair in pairs]
    relevant = [(gain > 0)[0, score[0].argsort()[::-1]] for gain, score in pairs]
    reciprocals = [1 / (places.argmax() + 1) if places.any() else 0.0 for places in relevant]
    task, parts = Ranking(), (slice(0, 3), slice(3, None))
    for weights in (None, torch.rand(len(groups), generator=RANDOM)):
        sums = [  # in two parts, as two ranks do
            task.sums(torch.cat(scores[part]), labels[part], None if weights is None else weights[part])
            for part in parts
        ]
        total = float(len(groups) if weights is None else weights.sum())
        found = task.figures((sums[0] + sums[1]).tolist(), total)
        assert found["ndcg_at_10"] == pytest.approx(np.average(ndcg, weights=weights))
        assert found["mean_reciprocal_rank"] == pytest.approx(np.average(reciprocals, weights=weights))
    *sums, count = counted(task, outputs, labels).tolist()
    assert count == len(groups) and sums[9] == pytest.approx(sum(ndcg))
    assert sums[0] == pytest.approx(sum(metrics.ndcg_score(*pair, k=1) for pair in pairs[1:-1]) + 2)


def test_the_loss_of_ranking_is_the_cross_entropy_of_each_group_alone() -> None:
    groups, labels, outputs = some_groups()
    outputs.requires_grad_()
    loss, weights = build_loss(Train(), Ranking()), torch.arange(6.0)
    expected = [
        torch.nn.functional.cross_entropy(score.T, group.float().softmax(dim=0).unsqueeze(0))
        for score, group in zip(outputs.split([len(group) for group in groups]), groups, strict=True)
    ]
    assert loss(outputs, labels, None).item() == pytest.approx(torch.stack(expected).mean().item())
    weighted = loss(outputs, labels, weights)
    assert weighted.item() == pytest.approx((torch.stack(expected) * weights).mean().item())
    (gradient,) = torch.autograd.grad(weighted, outputs)
    (other,) = torch.autograd.grad((torch.stack(expected) * weights).mean(), outputs)
    assert torch.allclose(gradient, other, atol=1e-6) and gradient.isfinite().all()


TASKS = Classification(CLASSES), Classification(2), MultiLabel(CLASSES), Ranking(), Regression(5.0, 2.0)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_what_a_task_says_of_itself_is_what_it_does(task: Task) -> None:
    labels, outputs = task.some_labels(torch.zeros(7, 1)), torch.randn(7, task.outputs, generator=RANDOM)
    assert task.sums(outputs, labels, None).shape == (task.sum_size,)
    found = figures(task, outputs, labels)
    assert set(found) == set(task.figure_names) and {task.best_by, task.step_figure} <= found.keys()
    assert set(task.train_figures) <= set(task.figure_names) <= set(get_args(FigureName))
    answer = pa.table(task.answers(outputs, NAMES, top_k=2), schema=task.answer)
    assert answer.num_rows == 7
    loss = build_loss(Train(), task)(outputs, labels, None)
    assert loss.ndim == 0 and torch.isfinite(loss)
    history = [{f"{split}_{name}": 0.5 for split in ("train", "validation") for name in ("loss", *found)}] * 2
    counts = counted(task, outputs, labels)
    pictures = task.curves(history) | task.pictures(counts, list("abcde")[: task.outputs])
    assert {"loss", task.best_by} <= pictures.keys() and len(pictures) >= 3
    for picture in pictures.values():
        picture.savefig(io.BytesIO())


def test_the_picture_of_predicted_numbers_has_the_true_one_across() -> None:
    task = Regression(mean=10.0, std=2.0)
    counts = counted(task, torch.tensor([[2.9], [100.0]]), torch.tensor([4.1, 10.0], dtype=torch.float64))
    cells = np.argwhere(counts.reshape(64, 64))
    assert cells.tolist() == [[62, 0], [63, 32]]  # predicted, true


def test_the_card_says_which_task_it_is() -> None:
    card = {"input": {"column": "x", "kind": "vector", "shape": (3,), "dtype": "float32"}, "raw_columns": {"x": "int"}}
    whole = {**card, "preprocessing": False, "label_names": ["a", "b"]}
    assert isinstance(create_task(ModelCard.model_validate(whole)), Classification)
    several = create_task(ModelCard.model_validate({**whole, "task": "multi_label"}))
    assert isinstance(several, MultiLabel) and several.outputs == 2
    ranking = create_task(ModelCard.model_validate({**whole, "label_names": [], "task": "ranking"}))
    assert isinstance(ranking, Ranking) and ranking.outputs == 1
    numbers = {**whole, "label_names": [], "task": "regression", "label_scale": LabelScale(mean=1.0, std=2.0)}
    task = create_task(ModelCard.model_validate(numbers))
    assert isinstance(task, Regression) and (task.mean, task.std, task.outputs) == (1.0, 2.0, 1)
