import io
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sparkdl.tracking.figures import accuracy_curve, confusion_matrix, loss_curve

HISTORY = [
    {"train_loss": 0.6, "train_accuracy": 0.78, "validation_loss": 0.4, "validation_accuracy": 0.86},
    {"train_loss": 0.3, "train_accuracy": 0.89, "validation_loss": 0.3, "validation_accuracy": 0.90},
]
CLOTHES = ["T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"]


def _texts(figure: Figure) -> list[str]:
    axes = figure.axes[0]
    return [text.get_text() for text in [*axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels()]]


def test_curves_have_a_line_per_split_and_labelled_axes() -> None:
    for figure, unit in ((loss_curve(HISTORY, "nats"), "nats"), (accuracy_curve(HISTORY), "%")):
        axes = figure.axes[0]
        assert [line.get_label() for line in axes.lines] == ["train", "validation"]
        assert axes.get_xlabel() == "epoch"
        assert unit in axes.get_ylabel()
    assert "90.0%" in _texts(accuracy_curve(HISTORY))


@pytest.mark.parametrize("history", [[], HISTORY[:1], [{"train_loss": float("nan"), "train_accuracy": 0.1}]])
def test_short_and_broken_histories_are_drawn_too(history: list[dict[str, float]]) -> None:
    for figure in (loss_curve(history), accuracy_curve(history)):
        figure.savefig(io.BytesIO())
        known = {key.partition("_")[0] for each in history for key in each}
        assert {line.get_label() for line in figure.axes[0].lines} == known


@pytest.mark.parametrize("history", [HISTORY[:1], HISTORY])
def test_the_last_figures_are_written_inside_the_axes(history: list[dict[str, float]]) -> None:
    for figure in (loss_curve(history), accuracy_curve(history)):
        FigureCanvasAgg(figure).draw()
        axes = figure.axes[0]
        frame = axes.get_window_extent()
        assert all(
            frame.y0 <= text.get_window_extent().y0 and text.get_window_extent().y1 <= frame.y1 for text in axes.texts
        )


@pytest.mark.parametrize("classes", [2, 10, 35, 100])
def test_no_label_of_a_confusion_matrix_covers_another(classes: int) -> None:
    names = CLOTHES if classes == 10 else [f"a rather long class name {i}" for i in range(classes)]
    figure = confusion_matrix(np.full((classes, classes), 999), names)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    boxes = [label.get_window_extent(renderer) for label in figure.axes[0].get_yticklabels() if label.get_text()]
    boxes.sort(key=lambda box: box.y0)
    assert all(lower.y1 <= upper.y0 + 1 for lower, upper in pairwise(boxes))
    assert 1 < len(boxes) <= 40


def test_cells_hold_counts_and_zeros_are_left_out() -> None:
    assert [text for text in _texts(confusion_matrix([[5, 0], [1, 7]], ["no", "yes"])) if text] == [
        *("5", "1", "7"),
        *("no", "yes"),
        *("no", "yes"),
    ]


def test_a_class_without_rows_does_not_divide_by_zero() -> None:
    with np.errstate(all="raise"):
        figure = confusion_matrix([[0, 0], [0, 7]], ["no", "yes"])
    assert [text for text in _texts(figure) if text] == ["7", *("no", "yes"), *("no", "yes")]
