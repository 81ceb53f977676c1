"""The picture of a training plan: how exchanges and steps grow with the number of ranks. Runs on the driver.

It is drawn without pyplot, so that neither a display nor a notebook's own figures are touched.
"""

from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from sparkdl.planning.cost import TOPOLOGIES
from sparkdl.planning.training_plan import TrainingPlan

__all__ = ["growth_figure"]

RANKS = [2**power for power in range(1, 11)]
"""Powers of two, with which a butterfly has no guests."""
COLOURS = ("#30303a", "#C44E52", "#4C72B0", "#DD8452", "#55A868", "#8172B3", "#937860")


def growth_figure(plan: TrainingPlan) -> Figure:
    """Seconds of an exchange by topology, and of a step by strategy, on 2 to 1,024 ranks; dots are measured."""
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    styles = cycle(["-", "-", "-", (0, (4, 3))])  # sharded servers move as much as a ring: both lines have to be seen
    for (name, topology), colour in zip(TOPOLOGIES.items(), COLOURS, strict=False):
        seconds = [plan.link.seconds(topology(plan.model_bytes, ranks)) for ranks in RANKS]
        left.plot(RANKS, seconds, color=colour, linestyle=next(styles), linewidth=2, label=name.replace("_", " "))
        if name in plan.measured:
            left.plot([plan.ranks], [plan.measured[name]], "o", color=colour, markersize=7, zorder=3)
    left.set_title(f"A mean of {plan.model_bytes / 1e6:,.1f} MB, by topology (dots are measured)")
    for name, colour in zip(plan.strategies, cycle(COLOURS), strict=False):
        right.plot(RANKS, [plan.seconds(name, ranks=ranks) for ranks in RANKS], color=colour, linewidth=2, label=name)
    right.set_title("A step, by strategy (topology ring)")
    for axes in (left, right):
        _frame(axes)
    return figure


def _frame(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("ranks")
    axes.set_ylabel("seconds")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(which="major", linewidth=0.5, alpha=0.4)
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
