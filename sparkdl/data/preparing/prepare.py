"""Prepares a dataset from a raw table: split, checked, ordered, cut into equal row groups, and written atomically."""

import logging
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from sparkdl.data.card import CARD_NAME, DRAWN_BY
from sparkdl.data.dataset import Dataset
from sparkdl.data.in_place.parquet_files import FoundRows, find_rows
from sparkdl.data.job_errors import explained
from sparkdl.data.preparing.content import write_content
from sparkdl.data.preparing.decisions import differing, kept_settings
from sparkdl.data.preparing.examine import Findings
from sparkdl.data.preparing.look import choose, look
from sparkdl.data.preparing.own_pipeline import describe_pipeline
from sparkdl.data.preparing.staging import Staging, staging
from sparkdl.data.sources.table_versions import at_version
from sparkdl.errors import ConfigError, DatasetError
from sparkdl.masking import without_credentials
from sparkdl.settings import Prepare, Source
from sparkdl.storage import exists, join, write_file

if TYPE_CHECKING:
    from pyspark.ml import Pipeline
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["check_prepare", "prepare"]

_log = logging.getLogger(__name__)


def prepare(
    source: "DataFrame | Source | None",
    settings: Prepare,
    *,
    spark: "SparkSession | None" = None,
    pipeline: "Pipeline | None" = None,
) -> Dataset:
    """Prepare raw rows for training. Runs on the driver; Spark tasks read and write the rows.

    ``source`` defaults to ``settings.source``; a DataFrame is read several times and must give the same rows each time.
    A table of Delta Lake or Iceberg is read at one version, which the card states. ``pipeline`` replaces
    ``settings.stages``; its output column is ``features``. It is fitted on the training split.

    If ``settings.output`` already holds these rows with these settings, nothing is prepared. Raises :class:`DataError`
    for rows that cannot become a dataset, and :class:`DatasetError` if ``settings.output`` cannot be written or holds
    something else.
    """
    source = _source(source, settings)
    decisions = _decisions(settings, pipeline)
    existing = _open_existing(settings.output, decisions)
    source, table = at_version(source, _session(spark)) if isinstance(source, Source) else (source, None)
    raw, looked_at, foreign = _found(source, settings, spark, pipeline)
    if existing is not None:
        split_by = "content" if foreign else existing.card.split_by
        with explained(settings.output), look(raw, looked_at, spark, pipeline, split_by, foreign) as found:
            _require_same_content(existing, found.findings)
        place = without_credentials(settings.output)
        _log.info("%s already holds these rows with these settings; nothing to prepare", place)
        return existing
    with (
        explained(settings.output),
        staging(settings.output, seal=CARD_NAME) as folder,
        look(raw, looked_at, spark, pipeline, "content" if foreign else DRAWN_BY, foreign) as found,
        ExitStack() as kept,
    ):
        card = write_content(found, decisions, settings, folder.path, foreign, kept).model_copy(update={"table": table})
        write_file(join(folder.path, CARD_NAME), card.to_json().encode())
        first = folder.publish()
    dataset = Dataset.open(settings.output)
    if not first:
        if dataset.digest != card.digest:
            raise DatasetError(
                f"another run has prepared another dataset in {settings.output} meanwhile, which was left unchanged. "
                "Choose another `output`."
            )
        place = without_credentials(settings.output)
        _log.info("another run has prepared the same dataset in %s meanwhile, which is used", place)
    return dataset


def check_prepare(
    source: "DataFrame | Source | None", settings: Prepare, *, spark: "SparkSession | None" = None
) -> dict[str, str]:
    """Check everything that :func:`prepare` needs, and return what would run. Runs on the driver.

    Reads at most a hundred rows. Raises the errors of :func:`prepare`, except those about single rows.
    """
    source = _source(source, settings)
    existing = _open_existing(settings.output, _decisions(settings, None))
    with explained(settings.output):
        if existing is None:
            Staging(settings.output, seal=CARD_NAME).check()
        opened, inputs = choose(source, settings, spark, None)
    columns = ", ".join(f"{name} ({kind})" for name, kind in inputs.raw_columns.items())
    return {
        "source": f"{source.format} {source.path or ''}".rstrip() if isinstance(source, Source) else str(opened),
        "inputs": ", ".join(f"{name} ({part.form.kind})" for name, part in inputs.parts.items()) + f" of {columns}"
        if inputs.parts
        else f"{inputs.kind} of {columns}",
        "label": "the next token" if settings.task == "language_modelling" else settings.label,
        "dataset": f"{settings.output} {'is there and would be compared' if existing else 'would be written'}",
    }


def _session(spark: "SparkSession | None") -> "SparkSession":
    from pyspark.sql import SparkSession

    return spark or SparkSession.builder.getOrCreate()


def _source(source: "DataFrame | Source | None", settings: Prepare) -> "DataFrame | Source":
    """The source of the rows. Raises an error if there is no source, or ``settings.output`` is not usable."""
    source = source if source is not None else settings.source
    if source is None:
        raise ConfigError("there is nothing to prepare: pass a DataFrame or set `prepare.source`")
    if set("#?") & set(settings.output):
        raise DatasetError(f"{settings.output}: Petastorm would cut the path at its # or ?; choose another `output`")
    return source


def _found(
    source: "DataFrame | Source", settings: Prepare, spark: "SparkSession | None", pipeline: "Pipeline | None"
) -> "tuple[DataFrame | Source, Prepare, FoundRows | None]":
    """The rows and the settings for examining them, and, if rows stay in place, their files."""
    if not settings.in_place:
        return source, settings, None
    if pipeline is not None or not isinstance(source, Source):
        what = "a pipeline of Spark's" if pipeline is not None else "a DataFrame"
        raise ConfigError(f"`in_place` needs Parquet files as `prepare.source`, and does not support {what}")
    foreign = find_rows(source, settings, spark)
    return foreign.rows, foreign.looked_at_by, foreign


def _decisions(settings: Prepare, pipeline: "Pipeline | None") -> dict[str, Any]:
    """The settings, and the pipeline, that decide the content of a dataset."""
    return kept_settings(settings) | ({} if pipeline is None else {"pipeline": describe_pipeline(pipeline)})


def _open_existing(output: str, wanted: dict[str, Any]) -> Dataset | None:
    """The existing dataset, if it was made with these settings. Raises :class:`DatasetError` for other settings."""
    if not exists(join(output, CARD_NAME)):
        return None
    existing = Dataset.open(output)
    if changed := differing(existing.card.settings, wanted):
        raise DatasetError(
            f"{output} was prepared with other settings: {'; '.join(changed)}. Choose another `output`, or remove it."
        )
    return existing


def _require_same_content(existing: Dataset, findings: Findings) -> None:
    if existing.card.source != findings.fingerprint:
        raise DatasetError(
            f"{existing.path} was prepared from other rows ({existing.card.source.partition('-')[0]} then, "
            f"{findings.fingerprint.partition('-')[0]} now, or other content). Choose another `output`, or remove it."
        )
