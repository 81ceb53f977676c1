"""Convolutions, then layers of 4,096 neurons, on two hosts with a slow link: data parallel, and by a hybrid layout.

In the hybrid (Project Adam: Chilimbi et al., OSDI 2014) ranks compute the convolutions for different rows, and have the
wide layers in parts.
"""

from collections.abc import Sequence
from functools import partial
from math import prod

from benchmarks.layout_plan import Step, between_hosts, measured_steps
from benchmarks.layout_subjects import IMAGE, WARM_UP, Layout, Network, convolutions_then_wide_layers
from benchmarks.report import Report, Target

__all__ = ["report", "run"]

HOSTS, MEGABITS = 2, 100.0
STEPS = 10
LAYOUTS = Layout("allreduce", HOSTS), Layout("tensor: 2", HOSTS, tensor=HOSTS)
NETWORK = Network(
    "convolutions, then 4,096 twice", partial(convolutions_then_wide_layers, 4096), rows=64, width=prod(IMAGE)
)
"""105 MB of weights, of which the convolutions have 0.2 MB."""


def run() -> Report:
    """Train over the link in both layouts. Runs on the driver, as root."""
    with between_hosts(HOSTS, MEGABITS) as launch:
        return report(measured_steps(f"{MEGABITS:g} Mbit/s", NETWORK, launch, layouts=LAYOUTS, steps=STEPS))


def report(steps: Sequence[Step]) -> Report:
    """The table: first the step of whole replicas, then that of the hybrid."""
    whole, hybrid = steps
    measured = hybrid.rows / hybrid.measured / (whole.rows / whole.measured)
    predicted = hybrid.rows / hybrid.predicted / (whole.rows / whole.predicted)
    return Report(
        title=f"hybrid: {hybrid.network}, on {HOSTS} hosts",
        columns=["layout", "rows of a step", "ms predicted", "ms measured", "rows/s"],
        rows=[
            [each.layout, each.rows, each.predicted, each.measured, 1000 * each.rows / each.measured] for each in steps
        ],
        targets=[
            Target("rows/s of the hybrid over allreduce", measured, 2.0),
            Target("relative error of what is predicted of that", abs(predicted / measured - 1), 0.1, at_most=True),
        ],
        note=f"{whole.link}. Medians of {STEPS - WARM_UP} steps, Adam, float32. A replica computes {NETWORK.rows}"
        " rows at a time, and a step learns from as many in each layout.",
    )
