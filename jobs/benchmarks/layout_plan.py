"""Milliseconds of a step in each layout, as ``plan-training`` predicts them and as they are, and what it chooses.

On four ranks of this machine, and on four hosts: network namespaces with links of a given bandwidth.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations
from math import prod
from statistics import median
from typing import Any, NamedTuple

import torch
from tqdm.auto import tqdm

from benchmarks.layout_subjects import (
    CLASSES,
    IMAGE,
    SIDE,
    WARM_UP,
    Layout,
    Network,
    Residual,
    WideEmbedding,
    convolutions_then_wide_layers,
)
from benchmarks.layouts import LAYOUTS, NETWORKS, SIZE, Launch, measure, on_this_machine, settings_of
from benchmarks.network import network
from benchmarks.report import Report, Target
from sparkdl.cluster import Rank
from sparkdl.collectives import TorchBackend
from sparkdl.planning.cores import Cores, measure_cores
from sparkdl.planning.cost import Traffic, fit_link
from sparkdl.planning.layout_choice import Choice, Choices
from sparkdl.planning.layout_costs import costs_of_layouts
from sparkdl.planning.layout_names import layout_name
from sparkdl.planning.links import Links
from sparkdl.planning.measure import ring_exchanges
from sparkdl.settings.strategies import AllReduceOptions
from sparkdl.training.tasks import Classification

__all__ = ["Step", "between_hosts", "measured_steps", "report", "run"]

MEGABITS = 200.0
STEPS, TRIED_STEPS = 15, 8
APART = 1.1
"""How many times as long one layout has to take as another for their order to count."""
SUBJECTS = (
    *NETWORKS,
    Network("convolutions, then 1,024 twice", partial(convolutions_then_wide_layers, 1024), rows=32, width=prod(IMAGE)),
    Network("residual", partial(Residual, channels=16, blocks=4, hidden=256), rows=16, width=3 * SIDE * SIDE),
    Network("60,000 words of 64 numbers", partial(WideEmbedding, words=60_000, width=64), rows=32, width=32),
)
CHOSEN = [layout for layout in LAYOUTS if layout.ranks == SIZE and not layout.shard and not layout.by_hand]


class Step(NamedTuple):
    """A step of a network in a layout."""

    link: str
    network: str
    layout: str
    predicted: float
    """Milliseconds."""
    measured: float
    rows: int
    """That it learns from."""
    tried: float | None = None
    """Milliseconds in the few steps that the choice was made from, if the layout was worth trying."""
    chosen: bool = False
    """Whether ``cluster.layout: auto`` would take it."""


def run() -> Report:
    """Train each network in each layout over each link. Runs on the driver."""
    found = []
    for link, launched in (("this machine", _here), (f"{MEGABITS:g} Mbit/s", partial(between_hosts, SIZE, MEGABITS))):
        with launched() as launch:
            for each in SUBJECTS:
                found += measured_steps(link, each, launch)
    return report(found)


def measured_steps(
    link: str, network: Network, launch: Launch, *, layouts: Sequence[Layout] = CHOSEN, steps: int = STEPS
) -> list[Step]:
    """Measure link and network as ``plan-training`` does, and steps in each layout. The first one has whole replicas.

    A step learns from as many rows as the network says for each rank, whatever the layout: replicas take several
    batches where there are fewer of them. The few steps that layouts are chosen by are others than those that count.
    """
    torch.manual_seed(0)
    ranks = layouts[0].ranks
    exchanges, cores = launch(_of_ranks, ranks)[0]
    links = Links.of_one_host(fit_link(exchanges), ranks=1)
    settings = settings_of(layouts[0]).model_copy(update={"batch_size": network.rows})
    costs = costs_of_layouts(
        *(network.build(), torch.rand(2, network.width), settings, Classification(CLASSES)),
        ranks=ranks,
        cores=cores,
        links=links,
    )
    own = network._replace(rows=network.rows * ranks, batch=network.rows)
    whole, measured, predicted = 0.0, {}, []
    possible = {layout_name(each.axes): each for each in layouts if layout_name(each.axes) in costs.possible}
    for name, layout in tqdm(possible.items(), desc=f"{link}, {network.name}", unit="layout"):
        found = measure(own, layout, steps=steps, launch=launch)
        whole, measured[name] = whole or found.computing, found.milliseconds
        cost = costs.possible[name]
        seconds = cost.seconds(links, whole / 1000)
        predicted.append(Choice(layout.axes, AllReduceOptions(), seconds, own.rows, cost.memory, cost.traffic.bytes))
    choices = Choices(predicted, {}, room=math.inf)
    for each in choices.worth_trying:
        few = measure(own, possible[each.name], steps=WARM_UP + TRIED_STEPS, launch=launch)
        choices = choices.replaced(each, each._replace(measured=few.milliseconds / 1000))
    return [
        Step(
            *(link, network.name, possible[each.name].name, 1000 * each.predicted, measured[each.name], own.rows),
            tried=1000 * each.measured if each.measured else None,
            chosen=each is choices.best,
        )
        for each in choices.possible
    ]


def report(steps: Sequence[Step]) -> Report:
    """The table, and what it says of the prediction."""
    errors = [abs(step.predicted / step.measured - 1) for step in steps]
    groups: dict[tuple[str, str], list[Step]] = {}
    for step in steps:
        groups.setdefault((step.link, step.network), []).append(step)
    pairs = [
        (one, other)
        for group in groups.values()
        for one, other in combinations(sorted(group, key=lambda step: step.measured), 2)
        if other.measured > APART * one.measured
    ]
    targets = [Target("median error of predicted milliseconds", median(errors), 0.1, at_most=True)]
    if pairs:
        ordered = sum(one.predicted < other.predicted for one, other in pairs) / len(pairs)
        targets.append(Target(f"of {len(pairs)} pairs a tenth or more apart, share in order", ordered, 1.0))
    for (link, name), group in groups.items():
        chosen = next(step for step in group if step.chosen)
        over = chosen.measured / min(step.measured for step in group)
        targets.append(Target(f"{link}, {name}: chosen over best, {chosen.layout}", over, 1.1, at_most=True))
    return Report(
        title=f"layout_plan: a step on {SIZE} ranks, predicted and measured",
        columns=["link", "network", "layout", "ms predicted", "ms tried", "ms measured", "rows/s"],
        rows=[
            [
                *(step.link, step.network, step.layout, step.predicted, step.tried or "-", step.measured),
                1000 * step.rows / step.measured,
            ]
            for step in steps
        ],
        targets=targets,
        note=f"Medians of {STEPS - WARM_UP} steps, which learn from as many rows in each layout. Predicted from the"
        " link, from what whole replicas compute, and from passes of parts on the driver; tried in"
        f" {TRIED_STEPS} steps where the prediction says that the layout may be the fastest.",
    )


def _of_ranks(rank: Rank) -> tuple[list[tuple[Traffic, float]], Cores]:
    device = torch.device(rank.device)
    with TorchBackend().connect(device) as world:
        return ring_exchanges(world, device), measure_cores(world, device)


@contextmanager
def _here() -> Iterator[Launch]:
    yield on_this_machine


@contextmanager
def between_hosts(count: int, megabits: float) -> Iterator[Launch]:
    """Ranks on so many hosts, whose links carry so many megabits a second. Runs on the driver, as root."""
    with network(count) as hosts:
        hosts.limit(megabits)

        def launch(function: Callable[[Rank], Any], ranks: int) -> list[Any]:
            return hosts.run(function, ranks_per_host=ranks // count, backend=TorchBackend())

        yield launch
