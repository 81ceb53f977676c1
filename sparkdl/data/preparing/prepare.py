"""A raw table becomes a dataset: split, checked, ordered, cut into equal row groups, and written all or nothing."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkdl.data.bad_rows import NAMED, take_good_lines, what_is_wrong
from sparkdl.data.card import (
    CARD_NAME,
    DRAWN_BY,
    LABEL_COLUMN,
    PREPROCESSING,
    WEIGHT_COLUMN,
    Card,
    InputSpec,
    LabelSpec,
    SplitCard,
)
from sparkdl.data.dataset import Dataset
from sparkdl.data.job_errors import explained
from sparkdl.data.labels import write_labels
from sparkdl.data.preparing.decisions import differing, kept_settings
from sparkdl.data.preparing.draw import check_strata, have_equals, with_hashes, with_numbers, with_split, with_strata
from sparkdl.data.preparing.examine import Findings, examine, find_problems, unusable
from sparkdl.data.preparing.features import (
    Inputs,
    apply_preprocessing,
    choose_inputs,
    describe_pipeline,
    raw_rows,
)
from sparkdl.data.preparing.label_column import LABEL, WEIGHT, find_task, label_type, working_label, working_weight
from sparkdl.data.preparing.order import CONTENT_HASH, ORDER, SPLIT, num_groups
from sparkdl.data.preparing.queries import QUERY, check_query, gathered
from sparkdl.data.preparing.runs import find_runs
from sparkdl.data.preparing.staging import Staging, staging
from sparkdl.data.preparing.write import Layout, write_row_groups
from sparkdl.data.sources.open import open_source
from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import check_names
from sparkdl.errors import ConfigError, DataError, DatasetError
from sparkdl.masking import without_credentials
from sparkdl.program import pickled_by_value
from sparkdl.settings import Prepare, Source
from sparkdl.settings.section import TaskName
from sparkdl.storage import exists, hash_folder, join, spark_url, write_file

if TYPE_CHECKING:
    from pyspark.ml import Pipeline
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["check_prepare", "prepare"]

READ_IN_PYTHON = "idx", "images", "wordnet", "xc"
"""Formats that are worth reading once; Spark's own readers are fast enough to read again."""

_SPARSE_ROW_BYTES = 1 << 10
"""About what a sparse row takes: some hundred features of 8 bytes."""

_SHOWN_CLASSES = 5
"""Classes that a warning lists."""

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
    ``pipeline`` replaces ``settings.stages``; its output column is ``features``. It is fitted on the training split.

    The same input with the same settings is recognised and not prepared again. Raises :class:`DataError` for rows that
    cannot become a dataset, and :class:`DatasetError` when ``settings.output`` cannot be written or holds something
    else.
    """
    source = _source(source, settings)
    decisions = _decisions(settings, pipeline)
    existing = _open_existing(settings.output, decisions)
    if existing is not None:
        with explained(settings.output), _examined(source, settings, spark, pipeline, existing.card.split_by) as found:
            (*_, findings) = found
            _require_same_content(existing, findings)
        place = without_credentials(settings.output)
        _log.info("%s holds these rows with these settings already; nothing to prepare", place)
        return existing
    with (
        explained(settings.output),
        staging(settings.output, seal=CARD_NAME) as folder,
        _examined(source, settings, spark, pipeline, DRAWN_BY) as (rows, inputs, task, findings),
    ):
        card = _write(rows, inputs, task, findings, decisions, settings, folder.path)
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
        raw, inputs = _chosen(source, settings, spark, None)
    columns = ", ".join(f"{name} ({kind})" for name, kind in inputs.raw_columns.items())
    return {
        "source": f"{source.format} {source.path}" if isinstance(source, Source) else str(raw),
        "inputs": f"{inputs.kind} of {columns}",
        "label": settings.label,
        "dataset": f"{settings.output} {'is there and would be compared' if existing else 'would be written'}",
    }


def _source(source: "DataFrame | Source | None", settings: Prepare) -> "DataFrame | Source":
    """Where rows come from. Raises an error unless there is something to prepare, and a place for it."""
    source = source if source is not None else settings.source
    if source is None:
        raise ConfigError("there is nothing to prepare: hand in a DataFrame or set `prepare.source`")
    if set("#?") & set(settings.output):
        raise DatasetError(f"{settings.output}: Petastorm would cut the path at its # or ?; choose another `output`")
    return source


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


@contextmanager
def _examined(
    source: "DataFrame | Source",
    settings: Prepare,
    spark: "SparkSession | None",
    pipeline: "Pipeline | None",
    split_by: str,
) -> "Iterator[tuple[DataFrame, Inputs, TaskName | None, Findings]]":
    """The raw rows with their split and label, how they become inputs, what for, and what was found in them."""
    raw, inputs = _chosen(source, settings, spark, pipeline)
    task = find_task(raw, settings)
    check_strata(task, settings)
    content = list(dict.fromkeys([*inputs.raw_columns, *settings.keys]))
    check_names(content)
    rows = with_hashes(raw, content, settings)
    rows = rows.withColumn(LABEL, working_label(raw, settings, task))
    if settings.weight:
        rows = rows.withColumn(WEIGHT, working_weight(raw, settings))
    kept = rows.persist() if isinstance(source, Source) and source.format in READ_IN_PYTHON else None
    try:
        rows = take_good_lines(rows, skip=settings.on_bad_rows == "skip")
        problems = find_problems(rows, inputs, settings, task)
        if split_by == "row" and not settings.qid and have_equals(rows):
            rows = with_numbers(rows, settings)
        if settings.split.stratify:
            rows = with_strata(rows, rows.where(what_is_wrong(problems) == 0), settings, once=True)
        rows, findings = examine(with_split(rows, settings), problems, settings, task, imputed=inputs.imputed)
        if settings.split.stratify:
            _warn_of_rare_classes(findings)
        yield rows, inputs, task, replace(findings, label_type=label_type(raw, settings, task))
    finally:
        if kept is not None:
            kept.unpersist()


def _warn_of_rare_classes(findings: Findings) -> None:
    """Say which classes have fewer rows than it takes for one in each split."""
    rare = []
    for index, name in enumerate(findings.label_names):
        counts = {split: counted[index] for split, counted in findings.class_counts.items()}
        if without := [split for split, count in counts.items() if not count]:
            rare.append(f"{name!r} ({sum(counts.values())} rows) in {', '.join(without)}")
    if rare:
        shown = f"{'; '.join(rare[:_SHOWN_CLASSES])}{'; ...' if len(rare) > _SHOWN_CLASSES else ''}"
        _log.warning("%s classes have no row in a split: %s", f"{len(rare):,}", shown)


def _chosen(
    source: "DataFrame | Source", settings: Prepare, spark: "SparkSession | None", pipeline: "Pipeline | None"
) -> "tuple[DataFrame, Inputs]":
    """The columns of the raw rows that count, and which of them become inputs, and how."""
    from pyspark.sql import SparkSession

    session = spark or SparkSession.builder.getOrCreate()
    raw = open_source(source, session) if isinstance(source, Source) else source
    inputs = choose_inputs(raw, settings, pipeline)
    raw = raw_rows(raw, inputs, settings)
    if settings.qid:
        check_query(raw, inputs, settings)
    return raw, inputs


def _write(
    rows: "DataFrame",
    inputs: Inputs,
    task: TaskName | None,
    findings: Findings,
    decisions: dict[str, Any],
    settings: Prepare,
    folder: str,
) -> Card:
    """Write everything but the card."""
    from pyspark.sql import functions as sf

    ready = rows
    if inputs.pipeline is not None:
        with pickled_by_value():
            model = inputs.pipeline.fit(rows.where(sf.col(SPLIT) == "train").drop(SPLIT, LABEL, WEIGHT, NAMED))
        model.write().save(spark_url(join(folder, PREPROCESSING)))
        ready = apply_preprocessing(rows, model, inputs.column, sparse=settings.sparse)
        if settings.on_bad_rows == "skip" and (settings.stages or inputs.may_be_infinite):
            ready, usable = examine(ready, [unusable(inputs.column, sparse=settings.sparse)], settings, task)
            findings = replace(usable, fingerprint=findings.fingerprint)  # that of the rows as they came
    spec = _spec(ready, inputs)
    row_bytes = _SPARSE_ROW_BYTES if settings.sparse else spec.row_bytes
    each, largest = (findings.queries.mean, findings.queries.largest) if findings.queries else (1.0, 1)
    groups = {split: num_groups(count, row_bytes, settings, each=each) for split, count in findings.split_rows.items()}
    labels = None
    if task is None:
        training = rows.where(sf.col(SPLIT) == "train")
        labels = write_labels(training.select(sf.explode(LABEL).alias(LABEL_COLUMN)), folder)
    stored = [sf.col(identifier(inputs.source)).alias(inputs.column), sf.col(LABEL).alias(LABEL_COLUMN)]
    if settings.weight:
        stored.append(sf.col(WEIGHT).alias(WEIGHT_COLUMN))
    if settings.qid:
        stored.append(sf.col(identifier(settings.qid)).alias(QUERY))
    examples = ready.select(*stored, SPLIT, ORDER, CONTENT_HASH)
    if settings.qid:
        examples = gathered(examples, inputs.column, settings)
    layout = Layout(
        input=spec,
        label=LabelSpec.of(task or "classification", len(findings.label_names)),
        label_names=findings.label_names,
        labels=labels,
        weighted=settings.weight is not None,
        row_bytes=row_bytes * largest,
        queries=task == "ranking",
    )
    runs = find_runs(examples, findings.split_rows, groups)
    written = write_row_groups(examples, folder, layout, runs)
    if written.unusable:  # tasks that write know neither the raw columns of these rows nor their values
        examine(ready, [unusable(inputs.column, sparse=settings.sparse)], settings, task)
    for split, count in findings.split_rows.items():
        found = sum(file.rows for file in written.files.get(split, ()))
        if found != count:
            raise DataError(
                f"the rows changed while they were read ({count:,} of split {split!r}, then {found:,}); prepare from "
                "a source that gives the same rows each time"
            )
    return Card.create(
        input=spec.model_copy(update={"mean": written.mean, "std": written.std}),
        task=task or "classification",
        label_names=findings.label_names,
        labels=labels,
        label_type=findings.label_type,
        label_scale=written.label_scale,
        mean_weight=written.mean_weight,
        splits={
            split: SplitCard(
                files=written.files[split],
                metadata_sha256=written.metadata[split],
                class_counts=findings.class_counts[split],
                sparse=written.counts.get(split),
            )
            for split in findings.split_rows
        },
        raw_columns=inputs.raw_columns,
        fields=inputs.fields,
        preprocessing=inputs.pipeline is not None,
        preprocessing_sha256=hash_folder(join(folder, PREPROCESSING)) if inputs.pipeline is not None else None,
        settings=decisions,
        split_by=DRAWN_BY,
        source=findings.fingerprint,
    )


def _spec(rows: "DataFrame", inputs: Inputs) -> InputSpec:
    """The input's form; the width of a vector that a pipeline makes is known from the first row."""
    if inputs.shape:
        return InputSpec(column=inputs.column, kind="image", shape=inputs.shape, dtype="uint8")
    if inputs.pipeline is None and inputs.source in inputs.widths:  # which is what all rows have: others were found
        return InputSpec(column=inputs.column, kind="vector", shape=(inputs.widths[inputs.source],), dtype="float32")
    (row,) = rows.select(identifier(inputs.source)).limit(1).collect()
    value = row[0]
    if inputs.kind == "sparse":
        width = len(value["values"]) if value["size"] is None else value["size"]
        return InputSpec(column=inputs.column, kind="sparse", shape=(width,), dtype="float32")
    return InputSpec(column=inputs.column, kind="vector", shape=(len(value),), dtype="float32")
