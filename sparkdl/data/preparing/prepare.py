"""A raw table becomes a dataset: split, checked, ordered, cut into equal row groups, and written all or nothing."""

import logging
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkdl.data.bad_rows import NAMED, WRONG, Problem, what_is_wrong
from sparkdl.data.card import (
    CARD_NAME,
    DRAWN_BY,
    LABEL_COLUMN,
    PREPROCESSING,
    WEIGHT_COLUMN,
    Card,
    InputSpec,
    SplitCard,
)
from sparkdl.data.dataset import Dataset
from sparkdl.data.in_place.parquet_files import FoundRows, find_rows
from sparkdl.data.in_place.recording import record_row_groups
from sparkdl.data.job_errors import explained
from sparkdl.data.label_spec import LabelSpec
from sparkdl.data.labels import write_labels
from sparkdl.data.preparing.blocks import RAW_BYTES, small_batches
from sparkdl.data.preparing.decisions import differing, kept_settings
from sparkdl.data.preparing.examine import Findings, examine
from sparkdl.data.preparing.features import (
    InputPlan,
)
from sparkdl.data.preparing.fitting import fit
from sparkdl.data.preparing.input_spec import input_spec
from sparkdl.data.preparing.label_column import LABEL, WEIGHT
from sparkdl.data.preparing.look import Look, choose, look
from sparkdl.data.preparing.named_plan import made_problems
from sparkdl.data.preparing.named_specs import find_specs, with_written
from sparkdl.data.preparing.order import CONTENT_HASH, ORDER, SPLIT, num_groups
from sparkdl.data.preparing.own_pipeline import apply_preprocessing, describe_pipeline, fit_pipeline
from sparkdl.data.preparing.queries import QUERY, gathered
from sparkdl.data.preparing.row_problems import unusable
from sparkdl.data.preparing.rows_to_write import RowsOfSpark, RowsOfTasks, RowsToWrite
from sparkdl.data.preparing.runs import find_runs
from sparkdl.data.preparing.staging import Staging, staging
from sparkdl.data.preparing.token_blocks import laid_in_blocks
from sparkdl.data.preparing.write import Layout, write_row_groups
from sparkdl.data.sources.table_versions import at_version
from sparkdl.data.sql import identifier
from sparkdl.errors import ConfigError, DatasetError
from sparkdl.masking import without_credentials
from sparkdl.preprocessing import STAGES_FILE, FittedPipeline
from sparkdl.settings import Prepare, Source
from sparkdl.storage import exists, hash_folder, join, write_file

if TYPE_CHECKING:
    from pyspark.ml import Pipeline
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["check_prepare", "prepare"]

_SPARSE_ROW_BYTES = 1 << 10
"""About what a sparse row takes: some hundred features of 8 bytes."""

_log = logging.getLogger(__name__)


def prepare(
    source: "DataFrame | Source | None",
    settings: Prepare,
    *,
    spark: "SparkSession | None" = None,
    pipeline: "Pipeline | None" = None,
) -> Dataset:
    """Prepare raw rows for training. Runs on the driver; rows are read and written by tasks.

    ``source`` defaults to ``settings.source``; a DataFrame is read several times and must give the same rows each time.
    A table of Delta Lake or Iceberg is read at one version, which the card names.
    ``pipeline`` replaces ``settings.stages``; its output column is ``features``. It is fitted on the training split.

    The same input with the same settings is recognised and not prepared again. Raises :class:`DataError` for rows that
    cannot become a dataset, and :class:`DatasetError` when ``settings.output`` cannot be written or holds something
    else.
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
        _log.info("%s holds these rows with these settings already; nothing to prepare", place)
        return existing
    with (
        explained(settings.output),
        staging(settings.output, seal=CARD_NAME) as folder,
        look(raw, looked_at, spark, pipeline, "content" if foreign else DRAWN_BY, foreign) as found,
        ExitStack() as kept,
    ):
        card = _write(found, decisions, settings, folder.path, foreign, kept).model_copy(update={"table": table})
        write_file(join(folder.path, CARD_NAME), card.to_json().encode())
        first = folder.publish()
    dataset = Dataset.open(settings.output)
    if not first:
        if dataset.digest != card.digest:
            raise DatasetError(
                f"another run prepared something else in {settings.output} meanwhile; nothing was changed there. "
                "Choose another `output`."
            )
        place = without_credentials(settings.output)
        _log.info("another run prepared the same in %s meanwhile; that is used", place)
    return dataset


def check_prepare(
    source: "DataFrame | Source | None", settings: Prepare, *, spark: "SparkSession | None" = None
) -> dict[str, str]:
    """Check what :func:`prepare` needs, read a hundred rows at most, and say what would run. Runs on the driver.

    Raises what :func:`prepare` raises; what is wrong with single rows is not found.
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
    """Where rows come from. Raises an error unless there is something to prepare, and a place for it."""
    source = source if source is not None else settings.source
    if source is None:
        raise ConfigError("there is nothing to prepare: hand in a DataFrame or set `prepare.source`")
    if set("#?") & set(settings.output):
        raise DatasetError(f"{settings.output}: Petastorm would cut the path at its # or ?; choose another `output`")
    return source


def _found(
    source: "DataFrame | Source", settings: Prepare, spark: "SparkSession | None", pipeline: "Pipeline | None"
) -> "tuple[DataFrame | Source, Prepare, FoundRows | None]":
    """The rows to look at and the settings to do so by; where they stay in place, what is known of their files, too."""
    if not settings.in_place:
        return source, settings, None
    if pipeline is not None or not isinstance(source, Source):
        what = "a pipeline of Spark's" if pipeline is not None else "a DataFrame"
        raise ConfigError(f"`in_place` reads Parquet files where they are, and cannot do that with {what}")
    foreign = find_rows(source, settings, spark)
    return foreign.rows, foreign.looked_at_by, foreign


def _decisions(settings: Prepare, pipeline: "Pipeline | None") -> dict[str, Any]:
    """What decides what a dataset holds."""
    return kept_settings(settings) | ({} if pipeline is None else {"pipeline": describe_pipeline(pipeline)})


def _open_existing(output: str, wanted: dict[str, Any]) -> Dataset | None:
    """The dataset that is there already, if it was made with these settings."""
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


def _write(
    found: Look,
    decisions: dict[str, Any],
    settings: Prepare,
    folder: str,
    foreign: FoundRows | None,
    kept: ExitStack,
) -> Card:
    """Write everything but the card; of rows that stay in place, no row groups. What Spark keeps for it is ``kept``."""
    from pyspark.sql import functions as sf

    inputs, task, findings = found.inputs, found.task, found.findings
    counted = found.counted
    ready, listed, fitted = _with_inputs(found, settings, folder)
    problems = _made_problems(inputs, settings) if inputs.preprocessed else []

    def named() -> "DataFrame":
        rows = found.made(fitted, with_names=True) if fitted else listed
        return rows.withColumn(WRONG, what_is_wrong(problems))

    if (
        inputs.preprocessed
        and settings.on_bad_rows == "skip"
        and (settings.stages or inputs.may_be_infinite or inputs.parts)
    ):
        made = listed.withColumn(WRONG, what_is_wrong(problems))
        left = examine(made, problems, settings, task, named=named)
        ready = listed = counted = left.usable(made)
        # The fingerprint is that of the rows as they came.
        findings = replace(left, fingerprint=findings.fingerprint, label_type=findings.label_type)
    if task == "language_modelling":
        assert fitted is not None
        blocks = kept.enter_context(laid_in_blocks(ready, found.rows(), inputs, fitted, settings))
        ready = counted = blocks.rows
        findings = replace(findings, split_rows=blocks.counts, class_counts=dict.fromkeys(blocks.counts, ()))
    specs = find_specs(inputs, ready, fitted, settings) if inputs.parts else input_spec(found, fitted, ready)
    if isinstance(specs, InputSpec):
        row_bytes = _SPARSE_ROW_BYTES if settings.sparse else specs.row_bytes
    else:
        row_bytes = sum(_SPARSE_ROW_BYTES if spec.kind == "sparse" else spec.row_bytes for spec in specs.values())
    each, largest = (findings.queries.mean, findings.queries.largest) if findings.queries else (1.0, 1)
    groups = {split: num_groups(count, row_bytes, settings, each=each) for split, count in findings.split_rows.items()}
    labels = None
    if task is None:
        training = found.rows().where(sf.col(SPLIT) == "train")
        labels = write_labels(training.select(sf.explode(LABEL).alias(LABEL_COLUMN)), folder)
    layout = Layout(
        inputs=specs,
        column=inputs.column,
        label=LabelSpec.of(task or "classification", len(findings.label_names)),
        label_names=findings.label_names,
        labels=labels,
        weighted=settings.weight is not None or task == "language_modelling",
        row_bytes=row_bytes * largest,
        queries=task == "ranking",
    )
    if foreign is None:
        examples = _examples(found, fitted, ready, counted, settings)
        with small_batches(ready.sparkSession, examples.value_bytes):
            runs = find_runs(examples.count_buckets, findings.split_rows, groups)
        written = write_row_groups(ready.sparkSession, examples, folder, layout, runs)
    else:
        assert isinstance(specs, InputSpec)
        written = record_row_groups(foreign, found, fitted, specs, folder)
    # Tasks that write know neither the raw columns of such rows nor their values.
    if any(split.unusable for split in written.splits.values()):
        examine(listed.withColumn(WRONG, what_is_wrong(problems)), problems, settings, task, named=named)
    if isinstance(specs, InputSpec):
        known: dict[str, Any] = {"input": specs.model_copy(update={"mean": written.mean, "std": written.std})}
    else:
        known = {"inputs": with_written(specs, written)}
    return Card.create(
        version=4 if foreign else 5 if inputs.parts else 3,
        in_place=foreign.described if foreign else None,
        **known,
        task=task or "classification",
        label_names=findings.label_names,
        labels=labels,
        label_type=findings.label_type,
        row_groups=written.row_groups,
        label_scale=written.splits["train"].scale,
        mean_weight=written.splits["train"].mean_weight,
        splits={
            name: SplitCard(
                num_rows=split.rows,
                num_groups=split.groups,
                metadata_sha256=split.metadata_sha256 or None,
                class_counts=findings.class_counts[name],
                sparse=split.sparse,
            )
            for name, split in written.splits.items()
        },
        raw_columns=inputs.raw_columns,
        fields=inputs.fields,
        preprocessing=inputs.preprocessed,
        preprocessing_sha256=hash_folder(join(folder, PREPROCESSING)) if inputs.preprocessed else None,
        settings=decisions,
        split_by=DRAWN_BY,
        source=findings.fingerprint,
    )


def _with_inputs(found: Look, settings: Prepare, folder: str) -> "tuple[DataFrame, DataFrame, FittedPipeline | None]":
    """The rows with what preprocessing makes of them, as they are best written, and as Spark can look into them.

    Fits the preprocessing on the training split, and writes what was fitted.
    """
    from pyspark.sql import functions as sf

    inputs = found.inputs
    if not inputs.preprocessed:
        return found.rows(), found.rows(), None
    if inputs.stages is not None:
        value_bytes = found.known.value_bytes if found.known else RAW_BYTES * len(inputs.raw_columns)
        with small_batches(found.counted.sparkSession, value_bytes):
            fitted = fit(inputs.stages, found.looked_at)
        write_file(join(folder, PREPROCESSING, STAGES_FILE), fitted.as_json())
        made = found.made(fitted)
        # Groups are gathered as lists.
        return made if settings.qid else found.made(fitted, in_bytes=True), made, fitted
    assert inputs.pipeline is not None
    training = found.rows().where(sf.col(SPLIT) == "train").drop(SPLIT, LABEL, WEIGHT)
    model = fit_pipeline(inputs.pipeline, training.drop(NAMED), join(folder, PREPROCESSING))
    made = apply_preprocessing(found.rows(), model, inputs.column, sparse=settings.sparse)
    return made, made, None


def _made_problems(inputs: InputPlan, settings: Prepare) -> list[Problem]:
    """What can be wrong with what preprocessing has made."""
    return made_problems(inputs) if inputs.parts else [unusable(inputs.column, sparse=settings.sparse)]


def _examples(
    found: Look, fitted: FittedPipeline | None, ready: "DataFrame", counted: "DataFrame", settings: Prepare
) -> RowsToWrite:
    """What is written of the rows, by tasks that know them or by Spark."""
    from pyspark.sql import functions as sf

    if found.known and fitted:
        return RowsOfTasks(found.known, fitted, found.findings.label_names)
    if found.task == "language_modelling":
        return RowsOfSpark(ready, counted)
    inputs = found.inputs
    stored = [sf.col(identifier(inputs.source)).alias(inputs.column), sf.col(LABEL).alias(LABEL_COLUMN)]
    if settings.weight:
        stored.append(sf.col(WEIGHT).alias(WEIGHT_COLUMN))
    if settings.qid:
        stored.append(sf.col(identifier(settings.qid)).alias(QUERY))
    rows = ready.select(*stored, SPLIT, ORDER, CONTENT_HASH)
    if settings.qid:
        rows = counted = gathered(rows, inputs.column, settings)
    return RowsOfSpark(rows, counted)
