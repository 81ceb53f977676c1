"""Plots a training plan: the times of exchanges and steps over the number of ranks. Runs on the driver.

It is drawn without pyplot, so that neither a display nor a notebook's own figures are touched.
"""

from itertools import cycle, product

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from sparkdl.planning.cost import TOPOLOGIES
from sparkdl.planning.layout_names import sharing_name
from sparkdl.planning.training_plan import TrainingPlan

__all__ = ["growth_figure"]

RANKS = [2**power for power in range(1, 11)]
"""Powers of two, for which a butterfly needs no extra messages."""
FEW_DECADES = 30
"""Ratio of an axis's limits below which ticks between powers of ten are labelled, too."""
COLOURS = ("#30303a", "#C44E52", "#4C72B0", "#DD8452", "#55A868", "#8172B3", "#937860")


def growth_figure(plan: TrainingPlan) -> Figure:
    """Seconds of an exchange by topology and of a step by strategy, and rows a second by layout, on 2 to 1,024 ranks.

    Dots are measurements.
    """
    figure = Figure(figsize=(16.5, 5.4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    styles = cycle(["-", "-", "-", (0, (4, 3))])  # lines of ring and sharded servers coincide
    for (name, topology), colour in zip(TOPOLOGIES.items(), COLOURS, strict=False):
        seconds = [plan.links.among(ranks).seconds(topology(plan.model_bytes, ranks)) for ranks in RANKS]
        left.plot(RANKS, seconds, color=colour, linestyle=next(styles), linewidth=2, label=name.replace("_", " "))
        if name in plan.measured:
            left.plot([plan.measured_by], [plan.measured[name]], "o", color=colour, markersize=7, zorder=3)
    left.set_title(f"A mean of {plan.model_bytes / 1e6:,.1f} MB, by topology (dots are measured)")
    for name, colour in zip(plan.strategies, cycle(COLOURS), strict=False):
        middle.plot(RANKS, [plan.seconds(name, ranks=ranks) for ranks in RANKS], color=colour, linewidth=2, label=name)
    middle.set_title("A step, by strategy (topology ring)")
    costs = plan.layouts.possible.values() if plan.layouts else ()
    for cost, (style, colour) in zip(costs, cycle(product(("-", "--", ":"), COLOURS)), strict=False):
        ranks = [each for each in RANKS if each >= cost.layout.sharing]
        found = [cost.on(each) for each in ranks]
        speed = [each.rows / each.seconds(plan.links, plan.whole) for each in found]
        right.plot(ranks, speed, color=colour, linestyle=style, linewidth=2, label=sharing_name(cost.layout))
    right.set_title("Rows a second, by how ranks share a replica")
    for axes, unit in ((left, "seconds"), (middle, "seconds"), (right, "rows a second")):
        _frame(axes, unit)
    return figure


def _number(value: float, _: int) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


def _frame(axes: Axes, unit: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("ranks")
    axes.set_ylabel(unit)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(_number))
    lowest, highest = axes.get_ylim()
    few = highest < FEW_DECADES * lowest
    axes.yaxis.set_minor_formatter(FuncFormatter(_number) if few else NullFormatter())
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(which="major", linewidth=0.5, alpha=0.4)
    if not axes.lines:
        return
    axes.legend(frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3)
