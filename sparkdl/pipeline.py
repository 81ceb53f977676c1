"""The jobs of a pipeline. Each takes settings, runs or is only checked, and returns a summary. Runs on the driver."""

import logging
import uuid
from collections.abc import Callable
from typing import Any

import sparkdl
from sparkdl.data.in_place.sources import foreign_source, name_of_card
from sparkdl.errors import ModelError
from sparkdl.settings import Extreme, Prepare, Settings, Tracking, Train
from sparkdl.storage import exists, join, remove

__all__ = [
    "check_compress",
    "check_prepare",
    "check_score",
    "check_train",
    "check_train_extreme",
    "check_tune",
    "compress",
    "parent_of",
    "prepare",
    "score",
    "train",
    "train_extreme",
    "tune",
]

Summary = dict[str, str]

log = logging.getLogger(__name__)


def prepare(settings: Settings) -> Summary:
    """Turn ``prepare.source`` into the dataset ``prepare.output``."""
    spark = sparkdl.get_session(settings.cluster, only_data=True)
    dataset = sparkdl.prepare(None, settings.require("prepare"), spark=spark)
    rows = ", ".join(f"{dataset.rows(split):,} {split}" for split in dataset.splits)
    return {**dataset.named, "rows": rows, "to learn": dataset.learned}


def check_prepare(settings: Settings) -> Summary:
    """See :func:`sparkdl.check_prepare`."""
    spark = sparkdl.get_session(settings.cluster, only_data=True)
    return sparkdl.check_prepare(None, settings.require("prepare"), spark=spark)


def train(settings: Settings) -> Summary:
    """Train on the dataset and register the model, with lighter forms if ``compress.forms`` is set."""
    arguments = _arguments(settings, settings.train)
    _check_forms(settings, arguments["dataset"])
    trained = sparkdl.train(**arguments)
    return {name.replace("_", " "): f"{value:.4f}" for name, value in trained.metrics.items()} | {
        "rows per second": f"{trained.rows_per_second:,.0f}",
        **({"seconds to target": f"{trained.seconds_to_target:,.1f}"} if trained.seconds_to_target else {}),
        "verdict": trained.verdict,
        "model": trained.model_uri,
        "alias": _alias(trained.registered, settings.tracking),
        **_formed(trained, settings, arguments["dataset"]),
        "look at it": sparkdl.page_command(settings.tracking),
    }


def check_train(settings: Settings) -> Summary:
    """See :func:`sparkdl.check_train`."""
    run_dir = settings.train.run_dir
    was_there, tried = exists(run_dir), join(run_dir, f"dry-run-{uuid.uuid4().hex}")
    try:
        arguments = _arguments(settings, settings.train, cards=tried)
        return sparkdl.check_train(**arguments) | _check_forms(settings, arguments["dataset"])
    finally:
        remove(tried if was_there else run_dir)


def tune(settings: Settings) -> Summary:
    """Search for the best settings, and train with them."""
    tuned = sparkdl.tune(settings, **_searched(settings))
    summary = {
        "trials": f"{len(tuned.trials)}: {tuned.states}",
        **{f"trial {record.number}": tuned.described(record) for record in tuned.best},
        "settings": tuned.settings_file,
    }
    if tuned.trained:
        summary |= {name.replace("_", " "): f"{value:.4f}" for name, value in tuned.trained.metrics.items()}
        summary |= {"model": tuned.trained.model_uri, "alias": _alias(tuned.trained.registered, settings.tracking)}
    return summary | {"look at it": sparkdl.page_command(settings.tracking)}


def check_tune(settings: Settings) -> Summary:
    """See :func:`sparkdl.check_tune`."""
    return sparkdl.check_tune(settings, **_searched(settings))


def train_extreme(settings: Settings) -> Summary:
    """Train on the sparse dataset and register the ensemble, with its lighter form if ``compress.forms`` is set."""
    arguments = _arguments(settings, settings.extreme)
    _check_forms(settings, arguments["dataset"])
    trained = sparkdl.train_extreme(**arguments)
    missing = (
        f" of {settings.extreme.repetitions}; lost: {', '.join(map(str, trained.missing))}" if trained.missing else ""
    )
    summary = {
        "repetitions": f"{len(trained.repetitions)}{missing} in {trained.folder}",
        "seconds": f"{trained.seconds:.1f}",
    }
    for split, found in trained.evaluations.items():
        figures = ", ".join(f"P@{k} {100 * found.precision[k - 1]:.2f}" for k in (1, 3, 5) if k <= len(found.precision))
        summary[split] = f"{figures} ({found.unseen_labels:,} of {found.labels:,} labels never seen in training)"
    return summary | {
        "model": f"{trained.model_uri}, {trained.model_bytes / 1e6:,.0f} MB",
        "alias": _alias(trained.registered, settings.tracking),
        **_formed(trained, settings, arguments["dataset"]),
        "look at it": sparkdl.page_command(settings.tracking),
    }


def check_train_extreme(settings: Settings) -> Summary:
    """See :func:`sparkdl.check_train_extreme`."""
    arguments = _arguments(settings, settings.extreme)
    return sparkdl.check_train_extreme(**arguments) | _check_forms(settings, arguments["dataset"])


def compress(settings: Settings) -> Summary:
    """Make lighter forms of the registered network, and register a version that has them."""
    made = sparkdl.compress(**_to_compress(settings))
    return _forms(made) | {"model": made.model_uri, "alias": _alias(made.registered, made.tracking)}


def check_compress(settings: Settings) -> Summary:
    """See :func:`sparkdl.check_compress`."""
    return sparkdl.check_compress(**_to_compress(settings))


def score(settings: Settings) -> Summary:
    """Write the registered model's predictions for the source's rows; with ``score.stream`` only for new rows."""
    # Imported here, because other commands do not need them.
    from sparkdl.scoring.rows_to_score import opened_stream, scored_rows
    from sparkdl.scoring.stream import score_stream

    output = settings.require("score.output")
    if settings.score.stream:
        model, _, stream = opened_stream(settings)
        written, new = score_stream(**stream), " new"
    else:
        model, scored = scored_rows(settings)
        how = settings.score.model_dump(include={"format", "mode", "key"})
        written, new = sparkdl.write_predictions(scored, output, **how), ""
    failed = f", {written.failed:,} of them without a prediction: see the column error" if written.failed else ""
    return {"model": model, "predictions": output, "rows": f"{written.rows:,}{new}{failed}"}


def check_score(settings: Settings) -> Summary:
    """Check that the model, the rows and a free place for predictions exist. Scores nothing."""
    from sparkdl.scoring.rows_to_score import opened_stream, scored_rows  # other commands do not need it

    output = settings.require("score.output")
    if settings.score.stream:
        model, scored, _ = opened_stream(settings, keep=False)
    else:
        sparkdl.check_output(output, format=settings.score.format, mode=settings.score.mode)
        model, scored = scored_rows(settings)
    return {"model": model, "columns": ", ".join(scored.columns), "predictions": output}


def parent_of(key: str) -> Callable[[Settings], str]:
    """A function from settings to the parent folder of the output that a key names."""
    return lambda settings: str(settings.require(key)).rstrip("/").rpartition("/")[0]


def _arguments(settings: Settings, section: Train | Extreme, *, cards: str | None = None) -> dict[str, Any]:
    """The arguments of :func:`sparkdl.train` and :func:`sparkdl.train_extreme`, from the settings of their section.

    If the dataset is a folder of Parquet files, a card is made for them, below ``cards`` or else beside the runs.
    """
    spark = sparkdl.get_session(settings.cluster)  # its Python workers start while the driver imports PyTorch
    dataset = section.dataset or settings.require("prepare.output")
    if isinstance(section, Train) and section.dataset and (source := foreign_source(section.dataset)):
        chosen = (settings.prepare or Prepare(output=section.dataset)).model_copy(
            update={"source": source, "in_place": True}
        )
        output = join(cards or section.run_dir, "datasets", name_of_card(section.dataset, chosen))
        dataset = sparkdl.prepare(None, chosen.model_copy(update={"output": output}), spark=spark)
    return {
        "dataset": dataset,
        "settings": section,
        "cluster": settings.cluster,
        "tracking": settings.tracking,
        "spark": spark,
    }


def _searched(settings: Settings) -> dict[str, Any]:
    """The dataset that all trials share, if they share one, and the Spark session in which they run."""
    if any(key.startswith("prepare.") for key in settings.tune.space):
        return {"spark": sparkdl.get_session(settings.cluster)}
    arguments = _arguments(settings, settings.train)
    return {name: arguments[name] for name in ("dataset", "spark")}


def _forms(made: Any) -> Summary:
    """A line for each form, with its figure and its size."""
    kept = {
        name: f"{form.metric} {form.figure:.4f} ({form.original_figure:.4f} of the original),"
        f" {form.bytes / form.original_bytes:.2f} of its bytes; {form.made}"
        for name, form in made.forms.items()
    }
    return kept | {name: f"left out: {reason}" for name, reason in made.left_out.items()}


def _check_forms(settings: Settings, dataset: sparkdl.Dataset | str) -> Summary:
    """Check before training that the forms in ``compress.forms``, if any, can be made after it."""
    if not settings.compress.after_training:
        return {}
    from sparkdl.forms.compress import split_to_measure_by  # imported here, because other commands do not need it

    opened = sparkdl.Dataset.open(dataset) if isinstance(dataset, str) else dataset
    split = split_to_measure_by(opened, settings.compress)
    return {"forms": f"{', '.join(settings.compress.forms)}, measured on {opened.rows(split):,} rows of {split}"}


def _formed(trained: Any, settings: Settings, dataset: sparkdl.Dataset | str) -> Summary:
    """If ``compress.forms`` is set, register another version of the trained model that has these forms."""
    if not settings.compress.after_training:
        return {}
    try:
        made = sparkdl.compress(trained, **_to_compress(settings) | {"dataset": dataset})
    except ModelError as error:
        log.warning("the model is trained and registered, but its forms could not be made: %s", error)
        return {"forms": f"none: {error}"}
    return _forms(made) | {
        "model with forms": made.model_uri,
        "alias after them": _alias(made.registered, made.tracking),
    }


def _to_compress(settings: Settings) -> dict[str, Any]:
    trained_on = settings.train.dataset or settings.extreme.dataset
    dataset = settings.compress.dataset or trained_on or settings.require("prepare.output")
    return {
        "settings": settings.compress,
        "dataset": dataset,
        "cluster": settings.cluster,
        "tracking": settings.tracking,
    }


def _alias(registered: Any, tracking: Tracking) -> str:
    """Whether the alias moved. Without an answer of MLflow there is no version yet."""
    if registered is None:
        return (
            "moves when `sparkdl sync` registers the model" if tracking.register_as else "none (tracking.register_as)"
        )
    return str(registered.reason)
