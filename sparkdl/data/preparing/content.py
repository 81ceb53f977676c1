"""Writes all of a dataset except its card: the fitted stages, the labels and the row groups; and makes the card."""

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkdl.data.bad_rows import NAMED, WRONG, Problem, what_is_wrong
from sparkdl.data.card import DRAWN_BY, LABEL_COLUMN, PREPROCESSING, WEIGHT_COLUMN, Card, InputSpec
from sparkdl.data.card_parts import SplitCard
from sparkdl.data.in_place.parquet_files import FoundRows
from sparkdl.data.in_place.recording import record_row_groups
from sparkdl.data.label_spec import LabelSpec
from sparkdl.data.labels import write_labels
from sparkdl.data.preparing.blocks import RAW_BYTES, small_batches
from sparkdl.data.preparing.examine import Findings, examine
from sparkdl.data.preparing.features import InputPlan
from sparkdl.data.preparing.fitting import fit
from sparkdl.data.preparing.input_spec import input_spec
from sparkdl.data.preparing.label_column import LABEL, WEIGHT
from sparkdl.data.preparing.look import Look
from sparkdl.data.preparing.named_plan import made_problems
from sparkdl.data.preparing.named_specs import find_specs, with_written
from sparkdl.data.preparing.order import CONTENT_HASH, ORDER, SPLIT, num_groups
from sparkdl.data.preparing.own_pipeline import apply_preprocessing, fit_pipeline
from sparkdl.data.preparing.queries import QUERY, gathered
from sparkdl.data.preparing.row_problems import unusable
from sparkdl.data.preparing.rows_to_write import RowsOfSpark, RowsOfTasks, RowsToWrite
from sparkdl.data.preparing.runs import find_runs
from sparkdl.data.preparing.token_blocks import laid_in_blocks
from sparkdl.data.preparing.write import Layout, write_row_groups
from sparkdl.data.preparing.written import Written
from sparkdl.data.sql import identifier
from sparkdl.preprocessing import STAGES_FILE, FittedPipeline
from sparkdl.settings import Prepare
from sparkdl.storage import hash_folder, join, write_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["write_content"]

_SPARSE_ROW_BYTES = 1 << 10
"""About the bytes of a sparse row: some hundred features of 8 bytes."""


def write_content(
    found: Look,
    decisions: dict[str, Any],
    settings: Prepare,
    folder: str,
    foreign: FoundRows | None,
    kept: ExitStack,
) -> Card:
    """Write everything except the card; for rows that stay in place, no row groups. ``kept`` holds Spark's caches."""
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
        # The fingerprint is that of the raw rows.
        findings = replace(left, fingerprint=findings.fingerprint, label_type=findings.label_type)
    if task == "language_modelling":
        assert fitted is not None
        blocks = kept.enter_context(laid_in_blocks(ready, found.rows(), inputs, fitted, settings))
        ready = counted = blocks.rows
        findings = replace(findings, split_rows=blocks.counts, class_counts=dict.fromkeys(blocks.counts, ()))
    specs = find_specs(inputs, ready, fitted, settings) if inputs.parts else input_spec(found, fitted, ready)
    groups = _num_groups(findings, specs, settings)
    layout = _layout(found, findings, specs, settings, folder)
    if foreign is None:
        examples = _examples(found, fitted, ready, counted, settings)
        with small_batches(ready.sparkSession, examples.value_bytes):
            runs = find_runs(examples.count_buckets, findings.split_rows, groups)
        written = write_row_groups(ready.sparkSession, examples, folder, layout, runs)
    else:
        assert isinstance(specs, InputSpec)
        written = record_row_groups(foreign, found, fitted, specs, folder)
    # Tasks that write do not have the raw columns and values of such rows.
    if any(split.unusable for split in written.splits.values()):
        examine(listed.withColumn(WRONG, what_is_wrong(problems)), problems, settings, task, named=named)
    return Card.create(
        version=4 if foreign else 5 if inputs.parts else 3,
        in_place=foreign.described if foreign else None,
        **_described_inputs(specs, written),
        task=task or "classification",
        label_names=findings.label_names,
        labels=layout.labels,
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
    """The rows with preprocessed inputs, once in the format that is fastest to write, and once readable for Spark.

    Fits the preprocessing on the training split, and writes it.
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
        # Spark collects the rows of groups as lists.
        return made if settings.qid else found.made(fitted, in_bytes=True), made, fitted
    assert inputs.pipeline is not None
    training = found.rows().where(sf.col(SPLIT) == "train").drop(SPLIT, LABEL, WEIGHT)
    model = fit_pipeline(inputs.pipeline, training.drop(NAMED), join(folder, PREPROCESSING))
    made = apply_preprocessing(found.rows(), model, inputs.column, sparse=settings.sparse)
    return made, made, None


def _made_problems(inputs: InputPlan, settings: Prepare) -> list[Problem]:
    """The problems that preprocessed inputs can have."""
    return made_problems(inputs) if inputs.parts else [unusable(inputs.column, sparse=settings.sparse)]


def _row_bytes(specs: InputSpec | dict[str, InputSpec], settings: Prepare) -> int:
    """About the bytes of a row's features."""
    if isinstance(specs, InputSpec):
        return _SPARSE_ROW_BYTES if settings.sparse else specs.row_bytes
    return sum(_SPARSE_ROW_BYTES if spec.kind == "sparse" else spec.row_bytes for spec in specs.values())


def _num_groups(findings: Findings, specs: InputSpec | dict[str, InputSpec], settings: Prepare) -> dict[str, int]:
    """The number of row groups of each split."""
    each = findings.queries.mean if findings.queries else 1.0
    rows, row_bytes = findings.split_rows, _row_bytes(specs, settings)
    return {split: num_groups(count, row_bytes, settings, each=each) for split, count in rows.items()}


def _layout(
    found: Look, findings: Findings, specs: InputSpec | dict[str, InputSpec], settings: Prepare, folder: str
) -> Layout:
    """The layout of a row. Writes the file of the labels, if there are very many."""
    from pyspark.sql import functions as sf

    task, labels = found.task, None
    if task is None:
        training = found.rows().where(sf.col(SPLIT) == "train")
        labels = write_labels(training.select(sf.explode(LABEL).alias(LABEL_COLUMN)), folder)
    return Layout(
        inputs=specs,
        column=found.inputs.column,
        label=LabelSpec.of(task or "classification", len(findings.label_names)),
        label_names=findings.label_names,
        labels=labels,
        weighted=settings.weight is not None or task == "language_modelling",
        row_bytes=_row_bytes(specs, settings) * (findings.queries.largest if findings.queries else 1),
        queries=task == "ranking",
    )


def _described_inputs(specs: InputSpec | dict[str, InputSpec], written: Written) -> dict[str, Any]:
    """The card's description of the inputs, after all rows have been written."""
    if isinstance(specs, InputSpec):
        return {"input": specs.model_copy(update={"mean": written.mean, "std": written.std})}
    return {"inputs": with_written(specs, written)}


def _examples(
    found: Look, fitted: FittedPipeline | None, ready: "DataFrame", counted: "DataFrame", settings: Prepare
) -> RowsToWrite:
    """The rows to write, read by tasks themselves or by Spark."""
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
