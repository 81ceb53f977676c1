"""Reads and examines the raw rows before anything is written."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from sparkdl.data.bad_rows import WRONG, take_good_lines, what_is_wrong
from sparkdl.data.preparing.blocks import RAW_BYTES, small_batches
from sparkdl.data.preparing.decoding import FILE_BYTES, decoded, with_files
from sparkdl.data.preparing.draw import (
    check_strata,
    draws_rows,
    find_strata,
    with_given,
    with_hashes,
    with_numbers,
    with_order,
    with_split,
    with_strata,
)
from sparkdl.data.preparing.equals import have_equals
from sparkdl.data.preparing.examine import Findings, examine
from sparkdl.data.preparing.features import InputPlan, check_number, raw_rows
from sparkdl.data.preparing.fitting import look_at
from sparkdl.data.preparing.known_rows import KnownRows, know_rows, plan_facts
from sparkdl.data.preparing.label_column import LABEL, WEIGHT, find_task, label_type, working_label, working_weight
from sparkdl.data.preparing.named_plan import plan_inputs
from sparkdl.data.preparing.order import SPLIT
from sparkdl.data.preparing.queries import check_query
from sparkdl.data.preparing.row_problems import find_problems, first_problem
from sparkdl.data.preparing.row_readers import FileReader, RowReader, SparkReader, file_reader
from sparkdl.data.preparing.stacking import FOUND, can_stack, look_at_training, stacked
from sparkdl.data.preparing.transform import transformed
from sparkdl.data.raw_columns import select_columns
from sparkdl.data.sources.open import open_source
from sparkdl.data.working_columns import check_names
from sparkdl.preprocessing import FittedPipeline, UnfittedPipeline
from sparkdl.settings import Prepare, Source
from sparkdl.settings.section import TaskName

if TYPE_CHECKING:
    from pyspark.ml import Pipeline
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Look", "choose", "look"]

READ_IN_PYTHON = "idx", "images", "wordnet", "xc"
"""Slow formats, whose rows are cached. Spark's own readers are fast enough to read several times."""

_SHOWN_CLASSES = 5
"""The most classes that a warning lists."""

_log = logging.getLogger(__name__)


class Look(NamedTuple):
    """The results of examining the raw rows."""

    counted: "DataFrame"
    """The usable rows, each with its label, split and hashes."""
    rows: "Callable[[], DataFrame]"
    """Returns the same rows with the raw columns."""
    made: "Callable[..., DataFrame]"
    """Returns the same rows with the inputs of a fitted pipeline: sparse vectors, lists of float32, or with
    ``in_bytes`` their bytes, which Spark passes on faster. With ``with_names``, also the values by which errors name
    rows."""
    looked_at: "Callable[[UnfittedPipeline], DataFrame]"
    """Returns the sums and counts of the training rows for fitting stages."""
    inputs: InputPlan
    task: TaskName | None
    findings: Findings
    known: KnownRows | None = None
    """The facts that tasks have computed, if they could do so without Spark."""


@contextmanager
def look(
    source: "DataFrame | Source",
    settings: Prepare,
    spark: "SparkSession | None",
    pipeline: "Pipeline | None",
    split_by: str,
    reader: RowReader | None = None,
) -> "Iterator[Look]":
    """Read and examine all raw rows. Runs on the driver; tasks read.

    ``reader`` passes the rows of ``source`` to tasks, if neither Spark nor :func:`file_reader` should. Cached rows are
    kept until the end of the context. Raises the errors of :func:`examine`.
    """
    opened, inputs = choose(source, settings, spark, pipeline)
    keys = select_columns(opened, settings.keys)
    task = find_task(keys, settings)
    check_strata(task, settings)
    content = list(dict.fromkeys([*inputs.raw_columns, *settings.keys]))
    check_names(content)
    stacks, kept, known = can_stack(opened, inputs, settings), None, None
    if stacks and isinstance(source, Source):
        reader = file_reader(source, opened, content)
    if reader is None:
        check_number(opened, list(inputs.raw_columns))
    # Planning every column takes Spark seconds, so it is only done if Spark reads them itself.
    raw = cache(lambda: raw_rows(opened, inputs, settings))
    reader = reader or SparkReader(raw())
    files = [] if stacks else with_files(raw(), inputs)
    try:
        # Spark 3.5 decides the batch size of rows for tasks when it plans a cached DataFrame.
        with small_batches(opened.sparkSession, FILE_BYTES if files else RAW_BYTES * len(content)):
            if stacks:
                seen = _labelled(stacked(reader, inputs, settings), settings, task)
                problems = find_problems(seen, inputs, settings, task, stacks=True)

                def judged(rows: "DataFrame") -> "DataFrame":
                    labelled = with_given(_labelled(rows, settings, task), settings)
                    return with_order(labelled.withColumn(WRONG, first_problem(problems)).drop(FOUND), settings)

                found = judged(stacked(reader, inputs, settings)).drop(*settings.keys)
                known = _known(reader, inputs, settings, task, tells_equals_apart=split_by == "row")
                kept = known.blocks if known else found.persist()
            else:
                hashed = with_hashes(_labelled(raw(), settings, task), content, settings)
                if files:
                    kept = hashed = decoded(hashed, inputs, files).persist()
                elif isinstance(source, Source) and source.format in READ_IN_PYTHON:
                    kept = hashed.persist()
                hashed = take_good_lines(hashed, skip=settings.on_bad_rows == "skip")
                problems = find_problems(hashed, inputs, settings, task)
                found = hashed.withColumn(WRONG, what_is_wrong(problems))
            may_be_equal = split_by == "row" and not settings.qid
            drawn = _Drawn(settings, numbered=known.numbered if known else may_be_equal and have_equals(found))
            if settings.split.stratify:
                strata = find_strata(drawn.numbered_rows(found).where(f"{WRONG} = 0"), settings)
                drawn = drawn._replace(strata=opened.sparkSession.createDataFrame(strata.collect(), strata.schema))

            def whole(*, with_raw: bool = False, with_names: bool = False) -> "DataFrame":
                if not stacks:
                    return drawn.rows(found)
                by_spark = SparkReader(raw())
                return drawn.rows(judged(stacked(by_spark, inputs, settings, with_raw=with_raw, with_names=with_names)))

            judged_rows = drawn.rows(found)
            named = partial(whole, with_names=True)
            findings = known.findings if known else examine(judged_rows, problems, settings, task, named=named)
        if settings.split.stratify:
            _warn_of_rare_classes(findings)
        findings = replace(findings, label_type=label_type(keys, settings, task))
        rows = cache(lambda: findings.usable(whole(with_raw=True)))

        def made(by: FittedPipeline, *, in_bytes: bool = False, with_names: bool = False) -> "DataFrame":
            if not stacks:
                return transformed(rows(), by, inputs, settings.keys, in_bytes=in_bytes)
            read = SparkReader(raw()) if with_names else reader
            by_stages = stacked(read, inputs, settings, made_by=by, in_bytes=in_bytes, with_names=with_names)
            inputs_made = judged(by_stages)
            return findings.usable(drawn.rows(inputs_made))

        def looked_at(pipeline: UnfittedPipeline) -> "DataFrame":
            if known:
                return known.look_at_training(pipeline)
            if stacks and drawn.known_in_tasks and settings.on_bad_rows == "error":
                return look_at_training(reader, inputs, settings, pipeline)
            return look_at(rows().where(f"{SPLIT} = 'train'"), inputs.staged_columns, pipeline)

        yield Look(findings.usable(judged_rows), rows, made, looked_at, inputs, task, findings, known)
    finally:
        if kept is not None:
            kept.unpersist()


def _known(
    reader: RowReader, inputs: InputPlan, settings: Prepare, task: TaskName | None, *, tells_equals_apart: bool
) -> KnownRows | None:
    """The facts that tasks compute from the rows; None if Spark is needed."""
    plan = plan_facts(reader.schema, inputs, settings, task)
    if plan is None or not isinstance(reader, FileReader | SparkReader):
        return None
    return know_rows(reader, inputs, plan, settings, tells_equals_apart=tells_equals_apart)


class _Drawn(NamedTuple):
    """How rows are drawn for splits, after all have been examined."""

    settings: Prepare
    numbered: bool
    """Whether some rows are equal."""
    strata: "DataFrame | None" = None

    @property
    def known_in_tasks(self) -> bool:
        """Whether the split of a row only depends on its content and the seed, or is a text in the row."""
        split = self.settings.split
        if split.column:
            return not split.fractions
        return draws_rows(self.settings) and not split.time and not self.numbered and self.strata is None

    def numbered_rows(self, rows: "DataFrame") -> "DataFrame":
        """The rows, in which equal rows are numbered."""
        return with_numbers(rows, self.settings) if self.numbered else rows

    def rows(self, rows: "DataFrame") -> "DataFrame":
        """The rows with their splits."""
        rows = self.numbered_rows(rows)
        return with_split(rows if self.strata is None else with_strata(rows, self.strata), self.settings)


def choose(
    source: "DataFrame | Source", settings: Prepare, spark: "SparkSession | None", pipeline: "Pipeline | None"
) -> "tuple[DataFrame, InputPlan]":
    """The raw rows, and the plan for their inputs."""
    from pyspark.sql import SparkSession

    session = spark or SparkSession.builder.getOrCreate()
    opened = open_source(source, session) if isinstance(source, Source) else source
    inputs = plan_inputs(opened, settings, pipeline)
    if settings.qid:
        check_query(select_columns(opened, settings.keys), inputs, settings)
    return opened, inputs


def _labelled(rows: "DataFrame", settings: Prepare, task: TaskName | None) -> "DataFrame":
    """The rows with their labels, and their weights if they have any."""
    labelled = rows.withColumn(LABEL, working_label(rows, settings, task))
    return labelled.withColumn(WEIGHT, working_weight(rows, settings)) if settings.weight else labelled


def _warn_of_rare_classes(findings: Findings) -> None:
    """Warn about classes without a row in some split."""
    rare = []
    for index, name in enumerate(findings.label_names):
        counts = {split: counted[index] for split, counted in findings.class_counts.items()}
        if without := [split for split, count in counts.items() if not count]:
            rare.append(f"{name!r} ({sum(counts.values())} rows) in {', '.join(without)}")
    if rare:
        shown = f"{'; '.join(rare[:_SHOWN_CLASSES])}{'; ...' if len(rare) > _SHOWN_CLASSES else ''}"
        _log.warning("%s classes have no row in a split: %s", f"{len(rare):,}", shown)
