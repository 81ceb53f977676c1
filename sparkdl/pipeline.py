"""The jobs of a pipeline: each from settings to what is told of it, done or only checked. Runs on the driver."""

import uuid
from collections.abc import Callable
from typing import Any

import sparkdl
from sparkdl.data.in_place.sources import foreign_source, name_of_card
from sparkdl.settings import Extreme, Prepare, Settings, Tracking, Train
from sparkdl.storage import exists, join, remove

__all__ = [
    "check_compress",
    "check_prepare",
    "check_score",
    "check_train",
    "check_train_extreme",
    "compress",
    "parent_of",
    "prepare",
    "score",
    "train",
    "train_extreme",
]

Summary = dict[str, str]


def prepare(settings: Settings) -> Summary:
    """Turn ``prepare.source`` into the dataset ``prepare.output``."""
    spark = sparkdl.get_session(settings.cluster, only_data=True)
    dataset = sparkdl.prepare(None, settings.require("prepare"), spark=spark)
    rows = ", ".join(f"{dataset.rows(split):,} {split}" for split in dataset.splits)
    return {"dataset": dataset.path, "rows": rows, "to learn": dataset.learned}


def check_prepare(settings: Settings) -> Summary:
    """See :func:`sparkdl.check_prepare`."""
    spark = sparkdl.get_session(settings.cluster, only_data=True)
    return sparkdl.check_prepare(None, settings.require("prepare"), spark=spark)


def train(settings: Settings) -> Summary:
    """Train on the dataset and register the model."""
    trained = sparkdl.train(**_arguments(settings, settings.train))
    return {name.replace("_", " "): f"{value:.4f}" for name, value in trained.metrics.items()} | {
        "rows per second": f"{trained.rows_per_second:,.0f}",
        **({"seconds to target": f"{trained.seconds_to_target:,.1f}"} if trained.seconds_to_target else {}),
        "verdict": trained.verdict,
        "model": trained.model_uri,
        "alias": _alias(trained.registered, settings.tracking),
        "look at it": sparkdl.page_command(settings.tracking),
    }


def check_train(settings: Settings) -> Summary:
    """See :func:`sparkdl.check_train`."""
    run_dir = settings.train.run_dir
    was_there, tried = exists(run_dir), join(run_dir, f"dry-run-{uuid.uuid4().hex}")
    try:
        return sparkdl.check_train(**_arguments(settings, settings.train, cards=tried))
    finally:
        remove(tried if was_there else run_dir)


def train_extreme(settings: Settings) -> Summary:
    """Train on the sparse dataset and register the ensemble."""
    trained = sparkdl.train_extreme(**_arguments(settings, settings.extreme))
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
        "look at it": sparkdl.page_command(settings.tracking),
    }


def check_train_extreme(settings: Settings) -> Summary:
    """See :func:`sparkdl.check_train_extreme`."""
    return sparkdl.check_train_extreme(**_arguments(settings, settings.extreme))


def compress(settings: Settings) -> Summary:
    """Make lighter forms of the registered network, and register a version that has them."""
    made = sparkdl.compress(**_to_compress(settings))
    summary: Summary = {
        name: f"{form.metric} {form.figure:.4f} ({form.original_figure:.4f} of the original),"
        f" {form.bytes / form.original_bytes:.2f} of its bytes; {form.made}"
        for name, form in made.forms.items()
    }
    summary |= {name: f"left out: {reason}" for name, reason in made.left_out.items()}
    return summary | {"model": made.model_uri, "alias": _alias(made.registered, made.tracking)}


def check_compress(settings: Settings) -> Summary:
    """See :func:`sparkdl.check_compress`."""
    return sparkdl.check_compress(**_to_compress(settings))


def score(settings: Settings) -> Summary:
    """Write the registered model's predictions for the source's rows."""
    output = settings.require("score.output")
    model, scored = _scored(settings)
    how = settings.score.model_dump(include={"format", "mode", "key"})
    written = sparkdl.write_predictions(scored, output, **how)
    failed = f", {written.failed:,} of them without a prediction: see their column error" if written.failed else ""
    return {"model": model, "predictions": output, "rows": f"{written.rows:,}{failed}"}


def check_score(settings: Settings) -> Summary:
    """Find model, rows and a free place for predictions; score nothing."""
    sparkdl.check_output(settings.require("score.output"), format=settings.score.format, mode=settings.score.mode)
    model, scored = _scored(settings)
    return {"model": model, "columns": ", ".join(scored.columns), "predictions": settings.require("score.output")}


def parent_of(key: str) -> Callable[[Settings], str]:
    """What gives the folder in which the output lies that a key names."""
    return lambda settings: str(settings.require(key)).rstrip("/").rpartition("/")[0]


def _arguments(settings: Settings, section: Train | Extreme, *, cards: str | None = None) -> dict[str, Any]:
    """Those of both ways to train, each with the settings of its section.

    Where the dataset is a folder of Parquet files, a card is made for them, below ``cards`` or else beside the runs.
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


def _to_compress(settings: Settings) -> dict[str, Any]:
    dataset = settings.compress.dataset or settings.train.dataset or settings.require("prepare.output")
    return {
        "settings": settings.compress,
        "dataset": dataset,
        "cluster": settings.cluster,
        "tracking": settings.tracking,
    }


def _scored(settings: Settings) -> tuple[str, Any]:
    """The model, and the rows with its predictions, which nobody has computed yet."""
    # What other commands need not import.
    from sparkdl.data.model_card import ModelCard
    from sparkdl.data.sql import condition
    from sparkdl.scoring.held_out import check_split
    from sparkdl.tracking import download

    model = settings.score.model or f"models:/{settings.require('tracking.register_as')}@{settings.tracking.alias}"
    source = settings.score.source or settings.require("prepare.source")
    options = settings.score.model_dump(
        include={"top_k", "batch_size", "on_error", "key", "predict", "form", "trusted_stages", "trusted_modules"}
    )
    rows = sparkdl.open_source(source, sparkdl.get_session(settings.cluster))
    if settings.score.split:
        prepare = settings.require("prepare")
        check_split(ModelCard.load(download(model, settings.tracking)), prepare, origin=model)
        rows = sparkdl.split_rows(rows, prepare, settings.score.split)
    if settings.score.where:
        rows = rows.where(condition(settings.score.where, key="score.where"))
    return model, sparkdl.score(rows, model, **options, tracking=settings.tracking)


def _alias(registered: Any, tracking: Tracking) -> str:
    """What became of the alias; there is no version while MLflow does not answer."""
    if registered is None:
        return (
            "moves when `sparkdl sync` registers the model" if tracking.register_as else "none (tracking.register_as)"
        )
    return str(registered.reason)
