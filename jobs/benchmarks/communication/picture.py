"""The picture of all methods: accuracy over seconds, one panel for each link.

It is drawn without pyplot, so that it needs no display.
"""

from collections.abc import Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MultipleLocator, PercentFormatter

from benchmarks.communication.results import MethodResults, Results

__all__ = ["accuracy_over_seconds"]

INK, GREY = "#30303a", "#8a8a94"
COLOURS = (
    "#30303a",
    "#E4572E",
    "#2E86AB",
    "#F2A541",
    "#4C9F70",
    "#8E5EA2",
    "#C2185B",
    "#7A9E9F",
    "#A0522D",
    "#5C6BC0",
    "#B8A200",
)
"""By method; the first one, all-reduce, is the darkest."""
SHOWN = 0.14  # below the best accuracy: what lies lower is the same steep climb for all


def accuracy_over_seconds(results: Results) -> Figure:
    """Accuracy on the validation rows over seconds on a logarithmic scale, the median and the range over seeds."""
    figure = Figure(figsize=(6.4 * max(1, len(results.links)) + 0.8, 5.8), layout="constrained")
    panels = figure.subplots(1, max(1, len(results.links)), sharey=True, squeeze=False)[0]
    best = max(found.final for found in results.methods)
    for axes, link in zip(panels, results.links, strict=True):
        for found, colour in zip(results.methods, cycle(COLOURS), strict=False):
            _draw(axes, found, link, colour, emphasised=found is results.methods[0])
        _frame(axes, results, link)
        axes.set_ylim(best - SHOWN, best + 0.01)
        axes.set_xlim(left=0.8 * min(_enters(found, link, best - SHOWN) for found in results.methods))
    panels[0].set_ylabel("right answers on validation rows")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(5, len(names)), frameon=False, fontsize=10)
    figure.suptitle(
        f"The same network on {results.ranks} hosts, by every way to agree", fontsize=15, fontweight="bold", color=INK
    )
    return figure


def _draw(axes: Axes, found: MethodResults, link: str, colour: str, *, emphasised: bool) -> None:
    """The median curve of a method within the range of its seeds, and a dot where training ends."""
    steps = sorted(set.intersection(*(set(curve) for curve in found.curves)))
    accuracies = np.array([[curve[step] for step in steps] for curve in found.curves])
    best_so_far = np.maximum.accumulate(accuracies, axis=1)
    seconds = np.array(steps) * found.links[link].seconds
    middle = np.median(best_so_far, axis=0)
    axes.fill_between(seconds, best_so_far.min(axis=0), best_so_far.max(axis=0), color=colour, alpha=0.12, linewidth=0)
    axes.plot(seconds, middle, color=colour, linewidth=3.2 if emphasised else 2.0, label=found.name, zorder=3)
    axes.plot(seconds[-1], middle[-1], "o", color=colour, markersize=5, zorder=4)


def _enters(found: MethodResults, link: str, accuracy: float) -> float:
    """The seconds at which the method's first curve comes into view."""
    steps = next((step for step, seen in found.curves[0].items() if seen >= accuracy), max(found.curves[0]))
    return steps * found.links[link].seconds


def _frame(axes: Axes, results: Results, link: str) -> None:
    axes.set_xscale("log")
    axes.set_title(f"{link} between hosts", fontsize=12, color=INK)
    axes.set_xlabel("seconds of training (steps times seconds of a step on this link)")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if value >= 1 else f"{value:g}"))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.yaxis.set_major_locator(MultipleLocator(0.02))
    axes.axhline(results.target, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    across = axes.get_yaxis_transform()
    axes.text(0.01, results.target, f"{results.target:.0%}", color=GREY, fontsize=9, transform=across, va="bottom")
    if ends := _ends(results.methods, link, results.target):
        winner, fast, slow = ends
        axes.annotate(
            "",
            (fast, results.target),
            (slow, results.target),
            arrowprops={"arrowstyle": "<->", "color": INK, "linewidth": 1.2},
            zorder=5,
        )
        axes.annotate(
            f"{winner}: {slow / fast:,.3g} times faster",
            ((fast * slow) ** 0.5, results.target),
            xytext=(0, -15),
            textcoords="offset points",
            ha="center",
            fontsize=11,
            fontweight="bold",
            color=INK,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
            zorder=6,
        )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(which="major", linewidth=0.5, alpha=0.35)


def _ends(methods: Sequence[MethodResults], link: str, target: float) -> tuple[str, float, float] | None:
    """The fastest method to the target, its seconds, and those of the first one, all-reduce, if that gets there."""
    reached = [(each, steps) for each in methods if (steps := each.median_steps_to(target))]
    seconds = {each.name: steps * each.links[link].seconds for each, steps in reached}
    if methods[0].name not in seconds:
        return None
    winner = min(seconds, key=lambda name: seconds[name])
    return winner, seconds[winner], seconds[methods[0].name]
