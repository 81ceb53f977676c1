"""The ``sparkdl`` command. Its sub-commands do the same as ``spark-submit jobs/<name>.py``."""

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
"""The modules of Py4J that talk to the JVM."""


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION)
def commands() -> None:
    """Train deep networks on the Spark cluster you already have.

    A raw table becomes a dataset (prepare), the dataset becomes a model (train), the model becomes a column (score).
    Each command reads its section of one YAML file. Settings may follow the file: train.epochs=3

    \b
    The exit code is 0 for success, or says where the problem is:
      2    arguments, settings, data, or your code
      69   the cluster: slots, executors, hosts
      74   storage, or MLflow's store
      130  the job was interrupted, or cancelled in Spark
      1    a defect of sparkdl
    """  # noqa: D301 - "\b" has to be a backspace, after which Click keeps the lines as they are
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.addFilter(lambda record: record.module not in PY4J)  # Py4J also raises the errors that it logs
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
@click.option("--resume", metavar="RUN_ID", help="Continue this unfinished search; 'auto': the newest unfinished one.")
@job(pipeline.tune, pipeline.check_tune, folder=lambda settings: settings.train.run_dir)
def tune() -> None:
    """Search for the best settings: several trials run at a time, on the cluster's free slots."""


@commands.command("train-extreme")
@job(pipeline.train_extreme, pipeline.check_train_extreme, folder=lambda settings: settings.extreme.run_dir)
def train_extreme() -> None:
    """Train a classifier of very many classes (MACH): Spark tasks train hashed meta-models."""


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
@click.option("--port", type=click.IntRange(0, 65_535), default=5000, show_default=True, help="0: any free port.")
@click.option(
    "--max-batch", type=click.IntRange(1), default=256, show_default=True, help="The most rows of a forward pass."
)
@click.option(
    "--max-wait-ms",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="How long the first request of a batch waits for others, at most.",
)
@click.option(
    "--form", default="auto", show_default=True, help="The form of the model that predicts, as in score.form."
)
@click.option("--tracking-uri", metavar="URI", help="MLflow's store; by default as for all jobs.")
def serve(model: str, tracking_uri: str | None, **options: Any) -> None:
    """Answer HTTP requests with a registered model; requests that arrive at the same time share one forward pass.

    MODEL is models:/name@alias, models:/name/version, or a folder. Requests and answers are those of `mlflow models
    serve`: POST /invocations. Ctrl-C ends the server after it has answered open requests.
    """
    sparkdl.serve(model, tracking=Tracking(uri=tracking_uri), **options)


@commands.command("plan-extreme")
@click.option("--classes", type=int, required=True, help="The number of classes.")
@click.option("--features", type=int, required=True, help="The width of a row.")
@click.option("--rows", type=int, required=True, help="Training rows.")
@click.option("--hidden", type=int, multiple=True, help="The width of a hidden layer; may be given several times.")
@click.option("--linear", is_flag=True, help="Models without hidden layers.")
@click.option("--labels", default=1.0, show_default=True, help="The average number of labels per row.")
@click.option("--nonzeros", default=32, show_default=True, help="The nonzero features of a row.")
@click.option("--shortlist", type=int, help="The classes that are ranked for a row; by default the usual number.")
@click.option("--buckets", type=int, help="The number of buckets; by default the usual one for so many classes.")
@click.option(
    "--repetitions", type=int, help="The number of repetitions; by default enough to distinguish all classes."
)
@click.option("--repetitions-per-task", type=int, default=1, show_default=True)
@click.option(
    "--delta", default=0.01, show_default=True, help="The accepted probability that two classes share all buckets."
)
@click.option("--epochs", default=1, show_default=True)
@click.option("--slots", default=1, show_default=True, help="The number of tasks that run at a time.")
@click.option("--slot-memory", type=int, help="The memory of a task, in megabytes.")
def plan_extreme(
    classes: int,
    features: int,
    slot_memory: int | None,
    buckets: int | None,
    hidden: Sequence[int],
    linear: bool,
    **numbers: Any,
) -> None:
    """Print the cost of buckets and repetitions, compared with one-vs-all. Nothing is trained."""
    chosen: dict[str, Any] = {
        "num_features": features,
        "num_buckets": buckets,
        "hidden": () if linear else hidden or None,
        "memory_per_slot": slot_memory * 10**6 if slot_memory is not None else None,
    }
    click.echo(sparkdl.plan_extreme(classes, **chosen, **numbers))


def _bytes_a_second(text: str) -> int:
    """The speed of a link in bytes per second, from the notation of ``tc``. Raises ValueError for another one."""
    return TypeAdapter(ByteSize).validate_python(text)


@commands.command("plan-training")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    default="output/plan-training.png",
    show_default=True,
    help="The file for the picture of exchanges, steps and layouts on 2 to 1,024 ranks.",
)
@click.option(
    "--ranks", type=int, help="Plan for so many ranks; by default for those that measure (cluster.num_ranks)."
)
@click.option("--hosts", type=int, help="The number of hosts of these ranks.")
@click.option(
    "--bandwidth",
    type=_bytes_a_second,
    metavar="SPEED",
    help="The speed of a host's link in each direction, such as 10gbit or 200mbit.",
)
@pipeline_arguments
def plan_training(configuration: str, overrides: Sequence[str], picture: Path, **elsewhere: Any) -> None:
    """Measure network and model, and predict each strategy's steps.

    Takes cluster.num_ranks ranks for some seconds. Prints which strategy and topology have the shortest steps, and what
    a rank would store and send in each layout, for this cluster or one that does not exist yet.
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
@click.option("--max-restarts", default=0, show_default=True, help="How often a failed script is restarted.")
@click.option("--checkpoint-dir", metavar="FOLDER", help="The folder that the script finds in SPARKDL_CHECKPOINT_DIR.")
def run(script: Path, arguments: Sequence[str], num_ranks: int, max_restarts: int, checkpoint_dir: str | None) -> None:
    """Run a script with its own training loop on ranks, as torchrun would.

    The script finds the other ranks by torch.distributed.init_process_group. Modules beside it are shipped with it.
    """
    runner = sparkdl.TorchRunner(np=num_ranks, max_restarts=max_restarts, checkpoint_dir=checkpoint_dir)
    runner.run(script, *arguments)


@commands.command()
@click.argument("configuration", type=click.Path(dir_okay=False), required=False)
@click.argument("overrides", nargs=-1, metavar="[SECTION.KEY=VALUE]...")
def sync(configuration: str | None, overrides: Sequence[str]) -> None:
    """Deliver the records that runs could not send while MLflow was down, in order and exactly once."""
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
    """Download the raw files of a public data set: fashion-mnist, wordnet, gcide, debian or debian-sources."""
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
    """Check packages, Java, slots, ranks, storage and tracking, and report what will not work.

    Without a configuration, all keys have their defaults.
    """
    from sparkdl.doctor import examine  # imported here, because it imports PyTorch

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
    """List the keys of one section of the configuration, with their defaults and allowed values.

    KEY is a section (train), a section in it (train.strategy), or a single key.
    """
    for line in describe_key(key, find_field(key, Settings)):
        click.echo(line)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the ``sparkdl`` command; ``arguments`` default to those of the process. Runs on the driver.

    Modules of the current folder can be imported, as with ``python -m``, but installed packages take precedence.
    """
    if not {"", here := str(Path.cwd())} & set(sys.path):
        sys.path.append(here)
    commands(args=list(arguments) if arguments is not None else None, prog_name="sparkdl")
