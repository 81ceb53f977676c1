"""``jobs/benchmark.py communication``: steps to an accuracy and seconds of a step, each measured once.

How many steps a method needs depends on the method alone, and how long a step takes on the link. Both are measured
apart, the steps on links without a limit, and multiplied; whole runs on the link confirm some of the products.
"""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from tqdm.auto import tqdm

import sparkdl
from benchmarks.communication.course import BACKEND, exchange_topologies
from benchmarks.communication.laboratory import RANKS, Laboratory, Plan, name_of_link
from benchmarks.communication.methods import METHODS
from benchmarks.communication.picture import accuracy_over_seconds
from benchmarks.communication.results import Exchange, Results
from benchmarks.communication.table import confirmations, exchanges, methods_on_links
from benchmarks.images import fashion_mnist, session
from benchmarks.network import Network, network
from benchmarks.report import Report
from sparkdl.planning.cost import TOPOLOGIES, two_levels

__all__ = ["QUICK", "WHOLE", "run"]

OUTPUT = Path("output/communication")
EXCHANGED_BYTES = 8 << 20
WHOLE = Plan(METHODS, (100, 1_000), (2048, 2048), 128, steps=288, look_every=18, target=0.87, validation=0.1)
QUICK = Plan(METHODS[:2], (1_000,), (64,), 32, steps=64, look_every=16, target=0.6, validation=0.02)


def run(plan: Plan, *, results: Path | None, seeds: int, tries: int) -> Iterator[Report]:
    """Print the tables and draw the picture. Runs on the driver, as root.

    ``results`` is the file of an earlier run: what it lacks is measured, and what it has is not measured again.
    """
    OUTPUT.mkdir(parents=True, exist_ok=True)
    found = Results.model_validate_json(results.read_text()) if results else _nothing_yet(plan, tries)
    if not found.finished:
        _measure(plan, found, seeds, tries)
    accuracy_over_seconds(found).savefig(OUTPUT / "accuracy-over-seconds.png", dpi=160)
    yield methods_on_links(found)
    yield confirmations(found)
    yield exchanges(found)


def _nothing_yet(plan: Plan, tries: int) -> Results:
    return Results(
        ranks=RANKS,
        rows=plan.batch_size,
        network="-".join(map(str, (784, *plan.hidden, 10))),
        target=plan.target,
        steps=plan.steps,
        tries=tries,
    )


def _measure(plan: Plan, results: Results, seeds: int, tries: int) -> None:
    """Fill in what is missing, and write it down piece by piece: a run that fails late has lost little."""
    known = len(results.methods)
    timed = sum(bool(found.links) for found in results.methods)
    work = (len(plan.methods) - known) * (tries + seeds) + (len(plan.methods) - timed) * (1 + len(plan.links))
    with (
        tempfile.TemporaryDirectory() as folder,
        tqdm(total=work, unit="run", disable=None) as bar,
    ):
        laboratory = Laboratory(plan, _fashion_mnist(folder, plan.validation), bar)
        with network(RANKS) as hosts:
            for method in plan.methods[known:]:
                results.methods.append(laboratory.learn(hosts, method, seeds, tries))
                _write(results)
            laboratory.find_links(hosts, results)
            for method, found in zip(plan.methods, results.methods, strict=True):
                if not found.links:
                    laboratory.time(hosts, results, method, found)
                    _write(results)
            if not results.confirmations:
                laboratory.confirm(hosts, results)
                _write(results)
            results.exchanges = _exchange(hosts, plan, results)
        with network(RANKS // 2) as hosts:
            results.exchanges += _exchange(hosts, plan, results)
    results.finished = True
    _write(results)


def _write(results: Results) -> None:
    (OUTPUT / "results.json").write_text(results.model_dump_json(indent=1))


def _exchange(hosts: Network, plan: Plan, results: Results) -> list[Exchange]:
    """The same mean in each topology on the slowest link, for a number of hosts."""
    hosts.limit(plan.links[0])
    link, ranks = results.links[name_of_link(plan.links[0])], RANKS // len(hosts.hosts)
    found = hosts.run(partial(exchange_topologies, EXCHANGED_BYTES), ranks_per_host=ranks, backend=BACKEND)[0]
    predicted = {"two_levels": link.seconds(two_levels(EXCHANGED_BYTES, len(hosts.hosts)))}
    if ranks == 1:
        predicted = {name: link.seconds(topology(EXCHANGED_BYTES, RANKS)) for name, topology in TOPOLOGIES.items()}
    return [
        Exchange(
            hosts=len(hosts.hosts),
            topology=name,
            megabytes=EXCHANGED_BYTES / 1e6,
            seconds=seconds,
            predicted=predicted.get(name),
        )
        for name, seconds in found.items()
    ]


def _fashion_mnist(folder: str, validation: float) -> sparkdl.Dataset:
    """The dataset, prepared; a Spark that was started for it is stopped, because it would take cores."""
    with session() as spark:
        return fashion_mnist(spark, f"{folder}/dataset", fractions={"validation": validation}, num_ranks=RANKS)
