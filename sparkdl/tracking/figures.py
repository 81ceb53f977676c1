"""Pictures of a run: figures by epoch, and predictions compared with labels. Runs on the driver.

They are drawn without pyplot, so that they need no display, and do not change a notebook's own figures.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

__all__ = [
    "accuracy_curve",
    "class_scores",
    "confusion_matrix",
    "figure_curve",
    "gain_by_place",
    "loss_curve",
    "precision_curve",
    "precision_recall_curve",
    "predicted_over_true",
    "roc_curve",
]

COLOURS = {"train": "#4C72B0", "validation": "#DD8452", "test": "#55A868"}
MARGINS = {"left": 0.14, "right": 0.94, "bottom": 0.12, "top": 0.91}  # of a curve, as shares of the picture
MAX_LABELLED = 40  # the most classes for which names fit beside the matrix
MAX_COUNTED = 20  # the most classes for which counts fit into the cells
MAX_NAME = 24  # characters of a class's name


def loss_curve(history: Sequence[Mapping[str, float]], unit: str = "") -> Figure:
    """Mean loss per epoch, one line per split; ``history`` has one mapping per epoch with keys like ``train_loss``."""
    figure, axes = _curve(history, "loss")
    axes.set_ylabel(f"mean loss ({unit})" if unit else "mean loss")
    lowest, highest = axes.get_ylim()
    bottom = min(0.0, lowest)  # a loss may be negative, for example poisson_nll_loss
    axes.set_ylim(bottom=bottom, top=highest + 0.08 * (highest - bottom))  # room for the values above the last points
    return figure


def accuracy_curve(history: Sequence[Mapping[str, float]]) -> Figure:
    """Accuracy per epoch, one line per split; ``history`` as for :func:`loss_curve`."""
    figure, axes = _curve(history, "accuracy")
    axes.set_ylabel("accuracy (% of rows)")
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=""))
    axes.set_ylim(top=min(1.0, axes.get_ylim()[1]))
    return figure


def figure_curve(history: Sequence[Mapping[str, float]], name: str) -> Figure:
    """Any other figure per epoch, one line per split; ``history`` as for :func:`loss_curve`."""
    return _curve(history, name)[0]


def precision_curve(precision: Mapping[int, Sequence[float]], cutoffs: Sequence[int] = (1, 3, 5)) -> Figure:
    """Precision over the number of repetitions; ``precision`` maps a number of repetitions to P@1, P@2 and so on."""
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    numbers = sorted(precision)
    for k in cutoffs:
        if all(len(precision[number]) >= k for number in numbers):
            axes.plot(numbers, [precision[number][k - 1] for number in numbers], marker="o", label=f"P@{k}")
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, [str(number) for number in numbers])
    axes.set_xlabel("repetitions")
    axes.set_ylabel("precision (% of predictions)")
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=""))
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return figure


def confusion_matrix(counts: Any, class_names: Sequence[str]) -> Figure:
    """How often each true class (row) was predicted as each class (column); ``counts`` is (classes, classes).

    A cell's colour is its share of the row, so that rare classes are visible, too. Names are written for up to 40
    classes, and counts for up to 20; with more than 40 classes, the axes are numbered.
    """
    matrix: npt.NDArray[np.float64] = np.asarray(counts, dtype=np.float64)
    classes = len(class_names)
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = float(np.clip(2.6 + 0.52 * classes, 4.2, 11.0))
    figure = Figure(figsize=(side + 1.0, side), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(share, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    bar = figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02, format=PercentFormatter(xmax=1, symbol=""))
    bar.set_label("share of the true class (%)")
    correct = np.trace(matrix) / max(matrix.sum(), 1)
    axes.set_title(f"{correct:.2%} of {matrix.sum():,.0f} rows are right")
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    if classes <= MAX_LABELLED:
        names = [_shorten(name) for name in class_names]
        size = 9 if classes <= MAX_COUNTED else 7
        axes.set_xticks(range(classes), names, rotation=45, ha="right", rotation_mode="anchor", fontsize=size)
        axes.set_yticks(range(classes), names, fontsize=size)
    else:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True, nbins=10))
        axes.set_xlabel("predicted class (number)")
        axes.set_ylabel("true class (number)")
    if classes <= MAX_COUNTED:
        size = 8 if matrix.max() < 10_000 else 6
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                colour = "white" if share[row, column] > 0.5 else "#30303a"
                axes.text(column, row, f"{count:.0f}", ha="center", va="center", fontsize=size, color=colour)
    return figure


def roc_curve(false_positives: Any, true_positives: Any, area: float, positive: str) -> Figure:
    """The ROC curve of the class ``positive``: true positive rate over false positive rate."""
    figure, axes = _unit_square(f"Area under the ROC curve of {_shorten(positive)}: {area:.4f}")
    axes.plot([0, 1], [0, 1], color="#30303a", linewidth=0.8, linestyle=":")
    axes.plot(false_positives, true_positives, linewidth=1.8)
    axes.set_xlabel("false positives (share of the negative rows)")
    axes.set_ylabel("true positives (share of the positive rows)")
    return figure


def precision_recall_curve(recall: Any, precision: Any, area: float, positive: str) -> Figure:
    """The curve of precision over recall of the class ``positive``."""
    figure, axes = _unit_square(f"Area under the precision-recall curve of {_shorten(positive)}: {area:.4f}")
    axes.step(np.concatenate([[0.0], recall]), np.concatenate([precision[:1], precision]), where="pre", linewidth=1.8)
    axes.axhline(float(precision[-1]), color="#30303a", linewidth=0.8, linestyle=":")  # the precision of random guesses
    axes.set_xlabel("recall (share of the positive rows that are found)")
    axes.set_ylabel("precision (share of positive rows among those found)")
    return figure


def _unit_square(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.6, 5.2), layout="constrained")
    axes = figure.subplots()
    axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.02), aspect="equal")
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(linewidth=0.5, alpha=0.4)
    return figure, axes


def class_scores(precision: Any, recall: Any, rows: Any, class_names: Sequence[str]) -> Figure:
    """Precision and recall of the at most 40 most frequent classes; all three arrays have the shape (classes,)."""
    shown = np.argsort(-np.asarray(rows), kind="stable")[:MAX_LABELLED][::-1]
    figure = Figure(figsize=(7, 1.6 + 0.26 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for scores, name, height in ((precision, "precision", 0.2), (recall, "recall", -0.2)):
        axes.barh(np.arange(len(shown)) + height, np.asarray(scores)[shown], 0.38, label=name)
    axes.set_yticks(range(len(shown)), [_shorten(class_names[place]) for place in shown], fontsize=7)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(xmax=1, symbol=""))
    axes.set_xlabel("% of predictions (precision) or of rows with the class (recall)")
    axes.legend(frameon=False)
    return figure


def predicted_over_true(counts: Any, extent: tuple[float, float]) -> Figure:
    """How often a number (column) was predicted as another one (row); ``counts`` is (cells, cells) over ``extent``."""
    matrix: npt.NDArray[np.float64] = np.asarray(counts, dtype=np.float64)
    figure = Figure(figsize=(5.6, 5), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(
        np.where(matrix > 0, matrix, np.nan), cmap="viridis", norm="log", origin="lower", extent=(*extent, *extent)
    )
    figure.colorbar(image, ax=axes, fraction=0.046, pad=0.02).set_label("rows")
    axes.plot(extent, extent, color="#30303a", linewidth=0.8)
    axes.set_title(f"{matrix.sum():,.0f} rows")
    axes.set_xlabel("true number")
    axes.set_ylabel("predicted number")
    return figure


def gain_by_place(gains: Sequence[float], groups: int) -> Figure:
    """NDCG at 1, 2, ... places; ``gains`` are means over ``groups`` groups."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(gains) + 1), gains, marker="o", markersize=4)
    axes.set_ylim(0, 1.02)
    axes.set_title(f"NDCG by number of places ({groups:,} groups)")
    axes.set_xlabel("places")
    axes.set_ylabel("NDCG: gain, as a part of the best order's")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.5, alpha=0.4)
    return figure


def _shorten(name: str) -> str:
    """A long name without its middle, because names of classes often differ at their ends."""
    half = MAX_NAME // 2
    return name if len(name) <= MAX_NAME else f"{name[: half - 1]}…{name[-half:]}"


def _curve(history: Sequence[Mapping[str, float]], what: str) -> tuple[Figure, Axes]:
    """One line per split over the epochs, with its last value written at its end."""
    figure = Figure(figsize=(7, 4.2))
    axes = figure.subplots(gridspec_kw=MARGINS)  # not a layout engine, which would draw everything twice
    epochs = np.arange(1, len(history) + 1)
    splits = [split for split in COLOURS if any(f"{split}_{what}" in figures for figures in history)]
    ends = []
    for split in splits:
        values = np.array([figures.get(f"{split}_{what}", np.nan) for figures in history])
        colour = COLOURS.get(split)
        (line,) = axes.plot(epochs, values, marker="o", markersize=4, linewidth=1.8, color=colour, label=split)
        last = float(values[-1])
        number = f"{last:,.0f}" if abs(last) >= 1000 else f"{last:.3f}"
        ends.append((last, f"{last:.1%}" if what == "accuracy" else number, line))
    higher = max((value for value, _, _ in ends), default=0.0)
    for value, text, line in ends:
        # The highest value is written above its line and others below, so that values of close lines are readable.
        offset, side = (6, "bottom") if value == higher else (-6, "top")
        axes.annotate(
            text,
            (float(epochs[-1]), value),
            xytext=(0, offset),
            textcoords="offset points",
            ha="center",
            va=side,
            color=line.get_color(),
            fontsize=9,
        )
    axes.margins(y=0.16)
    axes.set_xlim(0.7, max(len(history), 1) + 0.3)
    axes.set_xlabel("epoch")
    axes.set_ylabel(what.replace("_", " "))
    axes.set_title(f"{what.capitalize().replace('_', ' ')} by epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.5, alpha=0.4)
    if splits:
        axes.legend(frameon=False)
    return figure, axes
