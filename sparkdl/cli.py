"""The ``sparkdl`` command: each sub-command is one job, and does what ``spark-submit jobs/<name>.py`` does."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from pydantic import ByteSize, TypeAdapter

import sparkdl
from sparkdl import pipeline
from sparkdl.config import load_settings
from sparkdl.errors import TrackingError
from sparkdl.extras import DISTRIBUTION
from sparkdl.job_commands import Commands, job, pipeline_arguments
from sparkdl.settings import Settings, Tracking
from sparkdl.settings.describe import describe_key
from sparkdl.settings.explain import find_field

__all__ = ["main"]

PY4J = ("java_gateway", "clientserver")
"""The modules that speak to the JVM."""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION)
def commands() -> None:
    """Train deep networks on the Spark cluster you already have.

    A raw table becomes a dataset (prepare), the dataset becomes a model (train), the model becomes a column (score).
    Each command reads its section of one YAML file; any key can be set behind it: train.epochs=3

    \b
    The exit code is 0, or a number that says who can mend what is wrong:
      2    you: arguments, settings, data, your code
      69   the cluster: slots, executors, hosts
      74   storage, or MLflow's store
      130  it was interrupted, or cancelled in Spark
      1    sparkdl itself has a defect
    """  # noqa: D301 - Click keeps the lines behind a backspace, which a raw text has not
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.addFilter(lambda record: record.module not in PY4J)  # what it tells everybody, it also raises
    for chatty in ("py4j", "mlflow", "alembic", "fsspec", "petastorm", "matplotlib"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


@commands.command()
@job(pipeline.prepare, pipeline.check_prepare, folder=pipeline.parent_of("prepare.output"))
def prepare() -> None:
    """Turn a raw table into a dataset of balanced Parquet files."""


@commands.command()
@click.option(
    "--resume", metavar="RUN_ID", help="Continue this run from its checkpoints; 'auto': the newest unfinished one."
)
@job(pipeline.train, pipeline.check_train, folder=lambda settings: settings.train.run_dir)
def train() -> None:
    """Train a network on a prepared dataset and register it."""


@commands.command()
@click.option(
    "--resume", metavar="RUN_ID", help="Go on with this search, whose driver has ended; 'auto': the newest such one."
)
@job(pipeline.tune, pipeline.check_tune, folder=lambda settings: settings.train.run_dir)
def tune() -> None:
    """Search for the best settings: trials on the slots that are there, several at a time."""


@commands.command("train-extreme")
@job(pipeline.train_extreme, pipeline.check_train_extreme, folder=lambda settings: settings.extreme.run_dir)
def train_extreme() -> None:
    """Train a classifier of very many classes: hashed meta-models, each pack of them a Spark task."""


@commands.command()
@job(pipeline.compress, pipeline.check_compress, folder=lambda settings: settings.compress.run_dir)
def compress() -> None:
    """Make lighter forms (int8, float16, ONNX) of a registered network."""


@commands.command()
@job(pipeline.score, pipeline.check_score, folder=pipeline.parent_of("score.output"))
def score() -> None:
    """Write a registered model's predictions for raw rows."""


@commands.command()
@click.argument("model", metavar="MODEL")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen at; 0.0.0.0: all.")
@click.option("--port", type=click.IntRange(0, 65_535), default=5000, show_default=True, help="0: any that is free.")
@click.option(
    "--max-batch", type=click.IntRange(1), default=256, show_default=True, help="Rows of a forward pass, at most."
)
@click.option(
    "--max-wait-ms",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="How long the first request of a batch waits for others.",
)
@click.option("--form", default="auto", show_default=True, help="Which of the model's forms answers, as in score.form.")
@click.option("--tracking-uri", metavar="URI", help="MLflow's store; by default as for all jobs.")
def serve(model: str, tracking_uri: str | None, **options: Any) -> None:
    """Answer HTTP requests with a registered model; those that arrive together share one forward pass.

    MODEL is models:/name@alias, models:/name/version, or a folder. Requests and answers are those of `mlflow models
    serve`: POST /invocations. Ctrl-C ends it, when what was asked is answered.
    """
    sparkdl.serve(model, tracking=Tracking(uri=tracking_uri), **options)


@commands.command("plan-extreme")
@click.option("--classes", type=int, required=True, help="How many classes.")
@click.option("--features", type=int, required=True, help="The width of a row.")
@click.option("--rows", type=int, required=True, help="Training rows.")
@click.option("--hidden", type=int, multiple=True, help="The width of a hidden layer; may be given several times.")
@click.option("--linear", is_flag=True, help="Without hidden layers.")
@click.option("--labels", default=1.0, show_default=True, help="Labels of a row, on average.")
@click.option("--nonzeros", default=32, show_default=True, help="Features of a row that are not zero.")
@click.option("--shortlist", type=int, help="Instead of the number of classes that is usually ranked for a row.")
@click.option("--buckets", type=int, help="Instead of the number that is usual for so many classes.")
@click.option("--repetitions", type=int, help="Instead of the number that tells all classes apart.")
@click.option("--repetitions-per-task", type=int, default=1, show_default=True)
@click.option("--delta", default=0.01, show_default=True, help="Accepted probability that two classes look alike.")
@click.option("--epochs", default=1, show_default=True)
@click.option("--slots", default=1, show_default=True, help="Tasks that run at a time.")
@click.option("--slot-memory", type=int, help="Megabytes for a task.")
def plan_extreme(
    classes: int,
    features: int,
    slot_memory: int | None,
    buckets: int | None,
    hidden: Sequence[int],
    linear: bool,
    **numbers: Any,
) -> None:
    """Say what buckets and repetitions cost, compared with one-vs-all, before anything is trained."""
    chosen: dict[str, Any] = {
        "num_features": features,
        "num_buckets": buckets,
        "hidden": () if linear else hidden or None,
        "memory_per_slot": slot_memory * 10**6 if slot_memory is not None else None,
    }
    click.echo(sparkdl.plan_extreme(classes, **chosen, **numbers))


def _bytes_a_second(text: str) -> int:
    """The speed of a link, as ``tc`` writes it. Raises ValueError."""
    return TypeAdapter(ByteSize).validate_python(text)


@commands.command("plan-training")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    default="output/plan-training.png",
    show_default=True,
    help="Where the picture goes: exchanges, steps and layouts on 2 to 1,024 ranks.",
)
@click.option("--ranks", type=int, help="Plan for so many ranks, instead of cluster.num_ranks, which measure.")
@click.option("--hosts", type=int, help="On how many hosts these are.")
@click.option(
    "--bandwidth",
    type=_bytes_a_second,
    metavar="SPEED",
    help="Of the link of a host, in each direction: 10gbit or 200mbit.",
)
@pipeline_arguments
def plan_training(configuration: str, overrides: Sequence[str], picture: Path, **elsewhere: Any) -> None:
    """Measure network and model, and predict each strategy's steps.

    It takes cluster.num_ranks ranks for some seconds, and says which strategy and topology have the shortest steps,
    and what a rank would hold and send in each layout, with as many ranks or on a cluster that does not exist yet.
    """
    settings = load_settings(configuration, overrides)
    folder = settings.train.dataset or settings.require("prepare.output")
    spark = sparkdl.get_session(settings.cluster)  # see train
    plan = sparkdl.plan_training(folder, settings.train, cluster=settings.cluster, spark=spark, **elsewhere)
    picture.parent.mkdir(parents=True, exist_ok=True)
    sparkdl.growth_figure(plan).savefig(picture, dpi=160)
    click.echo(f"{plan}\n\npicture: {picture}")


@commands.command()
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, metavar="[-- ARGUMENTS...]")
@click.option(
    "--num-ranks", type=int, required=True, help="Ranks in task slots; if negative, processes on this machine."
)
@click.option("--max-restarts", default=0, show_default=True, help="How often a failed script is started again.")
@click.option("--checkpoint-dir", metavar="FOLDER", help="What the script finds as SPARKDL_CHECKPOINT_DIR.")
def run(script: Path, arguments: Sequence[str], num_ranks: int, max_restarts: int, checkpoint_dir: str | None) -> None:
    """Run a script with a loop of its own on ranks, as torchrun would.

    It finds the other ranks by torch.distributed.init_process_group. Modules beside it travel with it.
    """
    runner = sparkdl.TorchRunner(np=num_ranks, max_restarts=max_restarts, checkpoint_dir=checkpoint_dir)
    runner.run(script, *arguments)


@commands.command()
@click.argument("configuration", type=click.Path(dir_okay=False), required=False)
@click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
def sync(configuration: str | None, overrides: Sequence[str]) -> None:
    """Deliver what runs could not record while MLflow did not answer, in order and once."""
    tracking = load_settings(configuration, overrides).tracking if configuration else Tracking()
    runs = sparkdl.sync(tracking)
    for run in runs:
        click.echo(run)
    if not runs:
        click.echo(f"nothing is waiting in {tracking.spool}")
    if waiting := sum(run.left for run in runs):
        raise TrackingError(f"{waiting} records are still waiting in {tracking.spool}; the lines above say why")


@commands.command()
@click.argument("name", metavar="NAME")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def fetch(name: str, folder: Path) -> None:
    """Get the raw files of a public data set: fashion-mnist, wordnet, gcide, debian or debian-sources."""
    click.echo(sparkdl.fetch(name, folder))


@commands.command()
@click.argument("dataset")
def verify(dataset: str) -> None:
    """Read a prepared dataset and check every file against its card."""
    opened = sparkdl.Dataset.open(dataset)
    opened.verify()
    click.echo(f"{opened.path} is whole: digest {opened.digest}")


@commands.command()
@click.argument("configuration", type=click.Path(dir_okay=False), required=False)
@click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
def doctor(configuration: str | None, overrides: Sequence[str]) -> None:
    """Look for what will not work: packages, Java, slots, ranks, storage, tracking.

    Without a configuration, with the defaults of each key.
    """
    from sparkdl.doctor import examine  # which imports PyTorch

    errors = []
    for finding in examine(load_settings(configuration, overrides) if configuration else Settings()):
        state = click.style("fails", fg="red") if finding.error else "ok   "
        click.echo(f"{finding.what:<10}{state}  {finding.text}")
        errors += [finding.error] if finding.error else []
    if errors:
        sys.exit(errors[0].exit_code)


@commands.command()
@click.argument("key")
def keys(key: str) -> None:
    """List the keys of one section of the configuration, with defaults and what they may be.

    KEY is a section (train), a section in it (train.strategy), or a single key.
    """
    for line in describe_key(key, find_field(key, Settings)):
        click.echo(line)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ``sparkdl`` command; ``arguments`` default to those of the process. Runs on the driver.

    Modules of the current folder can be imported, as with ``python -m``, but stand behind all that is installed.
    """
    if not {"", here := str(Path.cwd())} & set(sys.path):
        sys.path.append(here)
    commands(args=list(arguments) if arguments is not None else None, prog_name="sparkdl")
