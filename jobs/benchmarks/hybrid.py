"""First layers with many activations, then wide ones, on two hosts with a slow link: data parallel, and hybrid layouts.

In a hybrid (Project Adam: Chilimbi et al., OSDI 2014) ranks compute the first layers for different rows, and have the
wide layers in parts. Before wide layers there are convolutions, which are always computed so, or blocks of a
transformer, which can be cut, too.
"""

from collections.abc import Sequence
from functools import partial
from math import prod

from benchmarks.layout_plan import Step, between_hosts, measured_steps
from benchmarks.layout_subjects import (
    IMAGE,
    WARM_UP,
    EncoderThenWide,
    Layout,
    Network,
    convolutions_then_wide_layers,
)
from benchmarks.report import Report, Target

__all__ = ["SUBJECTS", "report", "run"]

HOSTS, MEGABITS = 2, 100.0
STEPS = 10
WHOLE, CUT = Layout("allreduce", HOSTS), Layout("tensor: 2", HOSTS, tensor=HOSTS)
FROM_WIDE = CUT._replace(name="tensor: 2, from wide.0 on", plan={"wide.0": "colwise", "wide.2": "rowwise"})
SUBJECTS = (
    (
        Network(
            "convolutions, then 4,096 twice", partial(convolutions_then_wide_layers, 4096), rows=64, width=prod(IMAGE)
        ),
        (WHOLE, CUT),
    ),
    (
        Network("transformer, then 1,024", partial(EncoderThenWide, width=128, layers=2, hidden=1024), 32, 64),
        (WHOLE, CUT, FROM_WIDE),
    ),
)
"""Networks with their layouts. The first one has 105 MB of weights, of which the convolutions have 0.2 MB."""


def run() -> Report:
    """Train over the link in each layout. Runs on the driver, as root."""
    with between_hosts(HOSTS, MEGABITS) as launch:
        link = f"{MEGABITS:g} Mbit/s"
        return report(
            [measured_steps(link, network, launch, layouts=layouts, steps=STEPS) for network, layouts in SUBJECTS]
        )


def report(of_networks: Sequence[Sequence[Step]]) -> Report:
    """The table. The steps of each network are those of whole replicas, and then those of the hybrids."""
    targets = []
    for whole, *hybrids in of_networks:
        for hybrid in hybrids:
            measured, predicted = whole.measured / hybrid.measured, whole.predicted / hybrid.predicted
            name = f"{hybrid.network}, {hybrid.layout}: rows/s over allreduce"
            targets.append(Target(name, measured, 2.0))
            error = abs(predicted / measured - 1)
            targets.append(Target(f"{name}, relative error of the prediction", error, 0.1, at_most=True))
    found = [step for steps in of_networks for step in steps]
    return Report(
        title=f"hybrid: {found[0].link} between {HOSTS} hosts",
        columns=["network", "layout", "rows of a step", "ms predicted", "ms measured", "rows/s", "chosen"],
        rows=[
            [
                *(step.network, step.layout, step.rows, step.predicted, step.measured),
                *(1000 * step.rows / step.measured, "yes" if step.chosen else ""),
            ]
            for step in found
        ],
        targets=targets,
        note=f"Medians of {STEPS - WARM_UP} steps, Adam, float32, one rank a host. A step learns from as many rows in"
        " each layout; `chosen` is what `cluster.layout: auto` would take.",
    )
