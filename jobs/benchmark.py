"""Measure speed beside the usual alternatives: ``spark-submit jobs/benchmark.py [name ...] [--json]``."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import cloudpickle
import torch
from click.core import ParameterSource
from pyspark import __version__ as spark_version
from pyspark import cloudpickle as spark_cloudpickle

import benchmarks
from benchmarks.report import Report
from sparkdl.stack import has_connect

NAMES = (
    "launch",
    "connect",
    "search",
    "tune",
    "loader",
    "loop",
    "scaling",
    "sequences",
    "recommend",
    "prepare",
    "pictures",
    "in_place",
    "score",
    "serve",
    "forms",
    "extreme",
    "checkpoint",
    "shards",
    "memory",
    "layouts",
    "layout_plan",
    "hybrid",
    "faults",
    "batches",
    "students",
    "communication",
    "asynchronous",
    "gpu",
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(NAMES), metavar=f"[{'|'.join(NAMES)}]...")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON per table instead of the table.")
@click.option(
    "--data",
    nargs=2,
    type=click.Path(exists=True, dir_okay=False),
    metavar="TRAIN TEST",
    help="For `extreme`: files in the Extreme Classification Repository's format, instead of public data.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(["wordnet", "debian", "debian-sources", "gcide"]),
    help="For `extreme`: on which data; may be given several times, by default all.",
)
@click.option(
    "--part",
    "parts",
    multiple=True,
    type=click.Choice(
        [
            *["transport", "hogwild", "regression", "backups", "race", "kills", "executors"],
            *["overhead", "several", "rival", "deaths"],
            *["networks", "ensemble"],
        ]
    ),
    help="For `asynchronous`, `tune` and `forms`: only this; may be given several times, by default all.",
)
@click.option("--rounds", type=click.IntRange(1), default=100, show_default=True, help="For `faults`: how many.")
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="For `faults`: which ones, and when; for `tune`: the first one.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "horovod", "torch"]),
    default="auto",
    show_default=True,
    help="For `faults`: by which library ranks exchange tensors.",
)
@click.option(
    "--seeds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="For `communication`, `asynchronous` and `batches`: trainings of a method; for `tune`, by default one search.",
)
@click.option(
    "--tries",
    type=click.IntRange(1, 5),
    help="For `communication`, `asynchronous` and `batches`: learning rates that each method tries; by default 3, and 2"
    " for `communication`, which trains the most.",
)
@click.option("--quick", is_flag=True, help="For `communication` and `asynchronous`: a small run, to see it work.")
@click.option(
    "--results",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="For `communication` and `asynchronous`: go on with the file that an earlier run wrote, and"
    " measure only what it lacks.",
)
def benchmark(
    names: Sequence[str],
    as_json: bool,
    data: tuple[str, str] | None,
    kinds: Sequence[str],
    rounds: int,
    seed: int,
    backend: str,
    parts: Sequence[str],
    **trainings: Any,
) -> None:
    """Measure speed beside the usual alternatives; without names, everything."""
    if data and names and "extreme" not in names:
        raise click.UsageError("--data is for the benchmark extreme: jobs/benchmark.py extreme --data TRAIN TEST")
    for pickle in (cloudpickle, spark_cloudpickle):  # executors have no copy of this folder
        pickle.register_pickle_by_value(benchmarks)
    asked = click.get_current_context().get_parameter_source("seeds")
    seeds_asked = asked is ParameterSource.COMMANDLINE  # by default, `tune` has one
    given = {option: value for option, value in trainings.items() if value is not None}
    tables = sys.stdout
    with redirect_stdout(sys.stderr):  # what ranks print, so that machines can read the tables
        here = {"connect": has_connect(spark_version), "gpu": torch.cuda.is_available()}
        everything = [name for name in NAMES if here.get(name, True)]
        for name in names or everything:
            measure = import_module(f"benchmarks.{name}").run
            options: dict[str, dict[str, Any]] = {
                "extreme": {"data": data or (), "kinds": kinds},
                "faults": {"rounds": rounds, "seed": seed, "backend": backend},
                "tune": {"parts": parts, "seed": seed, **({"seeds": given["seeds"]} if seeds_asked else {})},
                "batches": {option: given[option] for option in ("seeds", "tries") if option in given},
                "forms": {"parts": parts},
                "communication": given,
                "asynchronous": {"parts": parts, **given},
            }
            measured = measure(**options.get(name, {}))
            for report in [measured] if isinstance(measured, Report) else measured:
                click.echo(report.to_json() if as_json else f"{report}\n", file=tables)


if __name__ == "__main__":
    benchmark()
