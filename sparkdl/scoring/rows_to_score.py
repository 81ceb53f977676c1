"""The rows with predictions that settings ask for: of a table or a stream, all of one version. Runs on the driver."""

from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from sparkdl.cluster import get_session
from sparkdl.data import open_source, split_rows
from sparkdl.data.model_card import ModelCard
from sparkdl.data.sources.open_stream import keeps_columns, open_stream
from sparkdl.data.sql import condition
from sparkdl.scoring.dataframe import score
from sparkdl.scoring.held_out import check_split
from sparkdl.scoring.merging import score_changes
from sparkdl.scoring.stream import check_stream_output
from sparkdl.scoring.stream_checkpoint import StreamCheckpoint
from sparkdl.sessions import require_classic
from sparkdl.settings import Settings, Source
from sparkdl.tracking import download, pinned

__all__ = ["opened_stream", "scored_rows"]


def scored_rows(settings: Settings) -> tuple[str, DataFrame]:
    """The model, and the rows with its predictions, which are not computed yet."""
    model, source, score_rows = _asked(settings)
    rows = open_source(source, get_session(settings.cluster))
    if settings.score.split:
        prepare = settings.require("prepare")
        check_split(ModelCard.load(download(model, settings.tracking)), prepare, origin=model)
        rows = split_rows(rows, prepare, settings.score.split)
    rows = _picked(rows, settings)
    if source.reads_changes:
        return model, score_changes(rows, score_rows, _merged_by(settings))
    return model, score_rows(rows)


def opened_stream(settings: Settings, *, keep: bool = True) -> tuple[str, DataFrame, dict[str, Any]]:
    """The model, the stream of new rows, and the other arguments of :func:`score_stream`. Nothing is computed yet.

    A new checkpoint is written, unless ``keep`` is false.
    """
    model, source, score_rows = _asked(settings)
    checkpoint = StreamCheckpoint.of(settings.score, source)
    spark = get_session(settings.cluster)
    require_classic(spark, "score.stream")
    rows = _picked(open_stream(source, spark, checkpoint.schema), settings)
    check_stream_output(checkpoint, settings.score, spark)
    scored = score_changes(rows, score_rows, None) if source.reads_changes else score_rows(rows)
    if keep and checkpoint.is_new:
        checkpoint.save(rows.schema if keeps_columns(source) else None)
    stream = {"rows": rows, "score": score_rows, "settings": settings.score}
    return model, scored, stream | {"source": source, "checkpoint": checkpoint}


def _asked(settings: Settings) -> tuple[str, Source, Callable[[DataFrame], DataFrame]]:
    """The model's name, the source, and a function that appends predictions to rows, all for the same version."""
    model = settings.score.model or f"models:/{settings.require('tracking.register_as')}@{settings.tracking.alias}"
    source = settings.score.source or settings.require("prepare.source")
    options = settings.score.model_dump(
        include={"top_k", "batch_size", "on_error", "key", "predict", "form", "trusted_stages", "trusted_modules"}
    )
    version = pinned(model, settings.tracking)
    return model, source, partial(score, model=version, **options, tracking=settings.tracking)


def _picked(rows: DataFrame, settings: Settings) -> DataFrame:
    """The rows that ``score.where`` selects."""
    return rows.where(condition(settings.score.where, key="score.where")) if settings.score.where else rows


def _merged_by(settings: Settings) -> str | None:
    """The column by which predictions are merged; None if they are not merged."""
    return settings.score.key if settings.score.mode == "merge" else None
