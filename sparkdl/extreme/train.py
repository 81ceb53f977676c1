"""Trains a registered ensemble on a sparse dataset; repetitions are independent Spark tasks. Runs on the driver."""

import hashlib
import json
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.sql import SparkSession

from sparkdl.cluster import count_slots, exit_on_sigterm, get_session
from sparkdl.data import Dataset
from sparkdl.data.model_inputs import example_row, packages_for_inputs
from sparkdl.errors import ConfigError, DatasetError
from sparkdl.extreme.ensemble import Ensemble, write_model_folder
from sparkdl.extreme.metrics import METRICS, RankingMetrics
from sparkdl.extreme.missing_repetitions import train_missing
from sparkdl.extreme.plan import Plan, plan_extreme
from sparkdl.extreme.repetitions import FORMAT, Finished
from sparkdl.extreme.train_ranker import train_ranker
from sparkdl.settings import Cluster, Extreme, LinearRankerOptions, Tracking
from sparkdl.storage import check_writable, join
from sparkdl.tracking import Registered, Run, check_gate, check_store, start_run
from sparkdl.tracking.figures import precision_curve
from sparkdl.tracking.translate import ranked

__all__ = ["TrainedEnsemble", "check_train_extreme", "train_extreme"]

BEST = 5
"""The number of likeliest classes in evaluations."""


@dataclass(frozen=True)
class TrainedEnsemble:
    """What :func:`train_extreme` returns."""

    run_id: str
    """The MLflow run, which has a child run for each repetition that was trained."""
    folder: str
    """Where the repetitions are."""
    repetitions: tuple[Finished, ...]
    """The records of the ensemble's repetitions."""
    missing: tuple[int, ...]
    """The numbers of lost repetitions; empty unless ``minimum_repetitions`` allows them."""
    evaluations: dict[str, RankingMetrics]
    """The whole ensemble on every split but ``train``."""
    seconds: float
    """Seconds of training of what was missing, in both stages, from the first task's start to the last one's end."""
    plan: Plan
    """The expected cost, compared with one-vs-all."""
    model_bytes: int
    """Bytes of the stored weights."""
    model_uri: str
    """The logged model, ready for :func:`sparkdl.score`; the registered version when there is one."""
    registered: Registered | None
    """The version in the registry and whether the alias moved to it."""
    tracking: Tracking
    """The tracking store that has the model."""


def train_extreme(
    dataset: Dataset | str | None = None,
    settings: Extreme | None = None,
    *,
    cluster: Cluster | None = None,
    tracking: Tracking | None = None,
    spark: SparkSession | None = None,
) -> TrainedEnsemble:
    """Train the meta-models of all repetitions, a Spark task for each pack of them, and then the ranker by classes.

    Evaluates and registers them as one model. Runs on the driver. ``dataset`` is a sparse one, or its folder; by
    default ``settings.dataset``. Repetitions that an earlier run finished with the same settings are not trained again,
    unless their files were altered. Spark retries a failed task; the other tasks are not affected.

    Raises :class:`~sparkdl.errors.DatasetError` for a dataset that is not sparse,
    :class:`~sparkdl.errors.ConfigError` for fewer than two classes and for hash functions that would map the same
    classes to one bucket in all repetitions, and :class:`~sparkdl.errors.TrainingError` if fewer repetitions than
    ``settings.minimum_repetitions`` are left. Warns if there are not more classes than buckets.
    """
    settings, cluster, tracking = settings or Extreme(), cluster or Cluster(), tracking or Tracking()
    dataset = _checked(dataset or settings.dataset, settings, tracking)
    spark = spark or get_session(cluster)
    plan = _plan(dataset, settings, count_slots(spark) or 1)
    sections = {"extreme": settings, "cluster": cluster, "tracking": tracking}
    params = dataset.named | {name: section.model_dump() for name, section in sections.items()}
    made_of = _digest(dataset, settings)
    # Jobs with other settings may use the same folder: their repetitions have other names.
    settings = settings.model_copy(update={"run_dir": join(settings.run_dir, made_of[:16])})
    with exit_on_sigterm(), start_run(tracking, params=params) as run:
        run.log_dataset(
            name=Path(dataset.path).name, digest=dataset.digest, source=dataset.path, card=dataset.card_json
        )
        started = time.perf_counter()
        records = train_missing(dataset, settings, made_of, spark, run)
        ranker = None
        if isinstance(settings.ranker, LinearRankerOptions):
            ranker = train_ranker(dataset, settings, settings.ranker, records, spark)
        seconds = time.perf_counter() - started
        with TemporaryDirectory() as scratch:
            Path(scratch, "plan.txt").write_text(f"{plan}\n")
            run.log_artifact(Path(scratch, "plan.txt"))
            folder = Path(scratch, "model")
            card = write_model_folder(folder, dataset, settings, records, ranker)
            evaluations = _evaluate(Ensemble.open(folder), dataset, _held_out(dataset, settings), run)
            model_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
            metadata = {
                "repetitions": len(card.repetitions),
                "repetitions_asked": card.asked,
                "repetitions_missing": list(card.missing),
                "weights_bytes": model_bytes,
                "plan": asdict(plan) | {"one_vs_all": [asdict(cost) for cost in plan.one_vs_all]},
            }
            model_uri = run.log_model(
                folder,
                inputs=dataset.served_columns,
                outputs=ranked(dataset.card.label_type),
                example=example_row(dataset),
                metadata=metadata,
                requirements=[*packages_for_inputs(Path(folder)), "numba"],  # numba compiles the loops that decode
            )
        registered = None
        if tracking.register_as:
            metrics = {
                f"{split}_{name}": value
                for split, found in evaluations.items()
                for name, value in found.as_metrics().items()
            }
            registered = run.register(model_uri, metrics)
    return TrainedEnsemble(
        run_id=run.run_id,
        folder=settings.run_dir,
        repetitions=tuple(records),
        missing=card.missing,
        evaluations=evaluations,
        seconds=seconds,
        plan=plan,
        model_bytes=model_bytes,
        model_uri=registered.uri if registered else model_uri,
        registered=registered,
        tracking=tracking,
    )


def check_train_extreme(
    dataset: Dataset | str | None = None,
    settings: Extreme | None = None,
    *,
    cluster: Cluster | None = None,
    tracking: Tracking | None = None,
    spark: SparkSession | None = None,
) -> dict[str, str]:
    """Check all that :func:`train_extreme` needs, train nothing, and say what would run. Runs on the driver.

    Takes its arguments and raises its errors; also a :class:`~sparkdl.errors.StorageError` where ``settings.run_dir``
    cannot be written, and a :class:`~sparkdl.errors.TrackingError` where MLflow's store cannot be used.
    """
    settings, cluster, tracking = settings or Extreme(), cluster or Cluster(), tracking or Tracking()
    dataset = _checked(dataset or settings.dataset, settings, tracking)
    slots = count_slots(spark or get_session(cluster))
    check_writable(settings.run_dir)
    plan = _plan(dataset, settings, slots or 1)
    return {
        "dataset": f"{dataset.path} ({dataset.rows('train'):,} rows to train on; {dataset.num_classes:,} classes)",
        "repetitions": f"{settings.repetitions} with {settings.buckets:,} buckets, in {settings.run_dir}",
        "slots": str(slots or "unknown"),
        "expected seconds": f"{plan.seconds:,.0f}",
        "tracking": check_store(tracking),
    }


def _held_out(dataset: Dataset, settings: Extreme) -> list[str]:
    """The splits that training does not use."""
    learned = {"train", settings.ranker.label_texts if isinstance(settings.ranker, LinearRankerOptions) else None}
    return [split for split in dataset.splits if split not in learned]


def _evaluate(ensemble: Ensemble, dataset: Dataset, splits: Sequence[str], run: Run) -> dict[str, RankingMetrics]:
    """Evaluate the ensemble on these splits, and log a plot of what each repetition adds."""
    whole = len(ensemble.repetitions)
    numbers = [2**power for power in range(whole.bit_length()) if 2**power < whole] + [whole]
    evaluations = {}
    for split in splits:
        found = ensemble.evaluate(dataset, split, k=BEST, repetitions=numbers)
        evaluations[split] = found[whole]
        for number in numbers[:-1]:
            precision = found[number].precision
            figures = {f"{split}_precision_at_{k}": precision[k - 1] for k in (1, 3, 5) if k <= len(precision)}
            run.log_metrics(figures, step=number)
        run.log_metrics({f"{split}_{name}": value for name, value in found[whole].as_metrics().items()}, step=whole)
        run.log_figure(
            precision_curve({number: found[number].precision.tolist() for number in numbers}),
            f"precision_{split}.png",
        )
    return evaluations


def _checked(dataset: Dataset | str | None, settings: Extreme, tracking: Tracking) -> Dataset:
    if dataset is None:
        raise ConfigError("there is nothing to train on: give a dataset, or set extreme.dataset or prepare.output")
    dataset = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    if dataset.input.kind != "sparse" or not dataset.card.labels:
        what = f"is for {dataset.card.task}" if dataset.input.kind == "sparse" else "is not sparse"
        raise DatasetError(f"{dataset.path} {what}; prepare it with `prepare.sparse: true` and without a `task`")
    if dataset.num_classes < 2:
        raise ConfigError(f"{dataset.path} has a single class; training needs at least two")
    ranker = settings.ranker
    if isinstance(ranker, LinearRankerOptions) and ranker.label_texts and ranker.label_texts not in dataset.splits:
        raise ConfigError(
            f"extreme.ranker.label_texts is {ranker.label_texts!r}, but {dataset.path} has the splits "
            f"{', '.join(dataset.splits)}: prepare the texts of the labels as a separate split"
        )
    figures = [f"{name}_at_{k}" for name in METRICS for k in range(1, min(BEST, dataset.num_classes) + 1)]
    check_gate(tracking, [f"{split}_{figure}" for split in _held_out(dataset, settings) for figure in figures])
    if settings.hash_family == "identity" and settings.buckets < dataset.num_classes:
        raise ConfigError(
            f"extreme.hash_family 'identity' needs a bucket for each of the {dataset.num_classes} classes, not "
            f"{settings.buckets} buckets: all repetitions would confuse the same ones"
        )
    if settings.buckets >= dataset.num_classes and settings.hash_family != "identity":
        warnings.warn(
            f"extreme.buckets is {settings.buckets} for {dataset.num_classes} classes: hashing buys nothing here; "
            "lower it, or train one classifier over the classes (sparkdl train)",
            stacklevel=3,
        )
    return dataset


def _plan(dataset: Dataset, settings: Extreme, slots: int) -> Plan:
    rows, counted = dataset.rows("train"), dataset.card.splits["train"].sparse
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the settings have warned of too many buckets already
        return plan_extreme(
            dataset.num_classes,
            num_features=settings.hashed_features or dataset.input.shape[0],
            rows=rows,
            hidden=settings.hidden,
            num_buckets=settings.buckets,
            repetitions=settings.repetitions,
            repetitions_per_task=settings.repetitions_per_task,
            epochs=settings.epochs,
            slots=slots,
            nonzeros=max(counted.values // rows, 1) if counted else 1,
            labels=counted.labels / rows if counted else 1,
            ranked=isinstance(settings.ranker, LinearRankerOptions),
            shortlist=settings.ranker.shortlist if isinstance(settings.ranker, LinearRankerOptions) else None,
        )


def _digest(dataset: Dataset, settings: Extreme) -> str:
    """The digest of what determines a repetition's weights: not the number of repetitions, nor their packing."""
    elsewhere = {"dataset", "run_dir", "repetitions", "repetitions_per_task", "minimum_repetitions", "ranker"}
    decisive = [dataset.digest, settings.model_dump(mode="json", exclude=elsewhere), FORMAT]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()
