"""Scores new rows of a source and adds them to a table exactly once, by Structured Streaming. Runs on the driver."""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what Spark's own documentation calls it

from sparkdl.cluster.interrupts import noted_signals
from sparkdl.data.job_errors import explained, spark_failures
from sparkdl.data.sources.format_packages import known_format
from sparkdl.data.sources.open import first_line
from sparkdl.errors import CheckpointError, DataError, SparkdlError
from sparkdl.scoring.merging import score_changes
from sparkdl.scoring.output import (
    WrittenPredictions,
    add_predictions,
    existing_table,
    failed_rows,
    write_predictions,
)
from sparkdl.scoring.stream_checkpoint import StreamCheckpoint
from sparkdl.settings import Score, Source
from sparkdl.settings.source import TABLE_FORMATS
from sparkdl.storage import exists, spark_url

__all__ = ["check_stream_output", "score_stream"]

_LOOK_SECONDS = 0.2
"""The interval in which it is checked whether a stream has ended."""
_COUNTS = "sparkdl"
"""The name of Spark's observation that counts the rows of a micro-batch."""
_ONCE = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
"""The settings by which Delta recognises a micro-batch that it has already merged."""
_SAYS = {
    r"CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries are concurrently using|ConcurrentUpdateLogException": (
        "another job uses the checkpoint {checkpoint}, or files are missing in it: wait until that job has ended, or"
        " remove the checkpoint and the output to score all rows again"
    ),
    r"DELTA_SOURCE_TABLE_IGNORE_CHANGES|DELTA_SOURCE_IGNORE_DELETE": (
        "rows of {source} were updated or deleted, which a stream of its rows cannot follow: read its changes with"
        " `options: {{readChangeFeed: true}}`, `mode: merge` and a new checkpoint, or skip them with"
        " `options: {{skipChangeCommits: true}}`"
    ),
    r"DELTA_MISSING_CHANGE_DATA|change data was not recorded": (
        "{source} has not recorded its changes: ALTER TABLE ... SET TBLPROPERTIES (delta.enableChangeDataFeed = true),"
        " and start the stream at that version (`startingVersion`)"
    ),
    r"DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE|was the table (changed|deleted)": (
        "{source} is not the table for which the checkpoint {checkpoint} was made; choose a new checkpoint"
    ),
    r"DELTA_SCHEMA_CHANGED|Detected (incompatible )?schema change": (
        "the columns of {source} have changed; start the job again, which then reads the new ones"
    ),
    r"OffsetSeqLog|CommitLog|HDFSMetadataLog|StreamMetadata|FileStreamSourceLog|FileStreamSinkLog"
    r"|(batches|offsets|logs?) .{0,40}(are|is) missing|Malformed log file|Incomplete log file": (
        "the checkpoint {checkpoint} is damaged; remove it and the output to score all rows again"
    ),
}
"""Patterns of errors of Spark and Delta that end a stream, and the messages that replace them. The first match wins."""


@dataclass
class _Counts:
    """The rows of each micro-batch of a stream, and how many of them have no prediction."""

    rows: dict[int, int] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)

    def add(self, number: int, rows: int, failed: int) -> None:
        self.rows[number], self.failed[number] = rows, failed

    def take(self, query: Any) -> None:
        """Add the counts that Spark has observed. Spark only keeps those of the last micro-batches."""
        for progress in query.recentProgress:
            if found := (progress.get("observedMetrics") or {}).get(_COUNTS):
                self.add(progress["batchId"], found["rows"], found["failed"])


def check_stream_output(checkpoint: StreamCheckpoint, settings: Score, spark: SparkSession) -> None:
    """Raise :class:`~sparkdl.errors.DatasetError` if predictions would be written twice, or some not at all."""
    output, format = str(settings.output), settings.format
    is_table = format == "delta" or format in TABLE_FORMATS
    with known_format(format, spark.version), explained(output):
        is_there = existing_table(spark, output, format) is not None if is_table else exists(output)
    checkpoint.check_output(is_there=is_there, mode=settings.mode)


def score_stream(
    rows: DataFrame,
    score: Callable[[DataFrame], DataFrame],
    settings: Score,
    source: Source,
    checkpoint: StreamCheckpoint,
) -> WrittenPredictions:
    """Score the rows that the stream's checkpoint does not list yet, and write each prediction exactly once.

    ``score`` appends predictions to rows. The stream ends when all rows that existed at its start are scored. With
    ``settings.interval``, it looks for new rows until Ctrl-C or SIGTERM ends it; the next stream then scores the rows
    of an unfinished micro-batch. Rows are appended by the format's sink, which skips micro-batches that it has already
    written, or merged by key, which gives the same rows however often it is repeated.

    Raises :class:`DataError` if a task cannot score a row or the source cannot be followed, and
    :class:`~sparkdl.errors.CheckpointError` for a checkpoint that is damaged or in use.
    """
    counts = _Counts()
    output = str(settings.output)
    spark = rows.sparkSession
    with _explained_stream(settings, source), known_format(settings.format, spark.version):
        query = _started(rows, score, settings, source, checkpoint, counts)
        numbers = [signal.SIGINT] if settings.interval is None else [signal.SIGINT, signal.SIGTERM]
        with noted_signals(*numbers) as heard:
            while query.isActive and not heard.wait(_LOOK_SECONDS):
                counts.take(query)
            query.stop()
        counts.take(query)
        if heard.is_set() and settings.interval is None:
            raise KeyboardInterrupt
        if not heard.is_set() and (failure := _failure(query, spark)):
            raise failure
    return WrittenPredictions(output, sum(counts.rows.values()), sum(counts.failed.values()))


def _started(
    rows: DataFrame,
    score: Callable[[DataFrame], DataFrame],
    settings: Score,
    source: Source,
    checkpoint: StreamCheckpoint,
    counts: _Counts,
) -> Any:
    output = str(settings.output)
    if settings.mode == "merge":
        writer = rows.writeStream.foreachBatch(_merging(score, settings, source, checkpoint, counts))
    else:
        scored = score_changes(rows, score, None) if source.reads_changes else score(rows)
        counted = F.count("*").alias("rows"), failed_rows(scored).alias("failed")
        writer = scored.observe(_COUNTS, *counted).writeStream.outputMode("append")
    writer = writer.option("checkpointLocation", spark_url(checkpoint.folder))
    if settings.interval is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(settings.interval * 1000)} milliseconds")
    if settings.mode == "merge":
        return writer.start()
    if settings.format in TABLE_FORMATS:
        named = writer if settings.format == "table" else writer.format(settings.format)
        return named.toTable(output)
    return writer.format(settings.format).start(spark_url(output))


def _merging(
    score: Callable[[DataFrame], DataFrame],
    settings: Score,
    source: Source,
    checkpoint: StreamCheckpoint,
    counts: _Counts,
) -> Callable[[DataFrame, int], None]:
    output, format, key = str(settings.output), settings.format, settings.key

    def merge_part(part: DataFrame, number: int) -> None:
        spark = part.sparkSession  # the stream's own session: nothing else sees these settings
        for name, value in zip(_ONCE, (checkpoint.id, str(number)), strict=True):
            spark.conf.set(name, value)
        scored = score_changes(part, score, key) if source.reads_changes else score(part)
        table = existing_table(spark, output, format)
        if table is None:
            found = write_predictions(scored, output, format=format)
        else:
            found = add_predictions(scored, output, format, table, key)
        counts.add(number, found.rows, found.failed)

    return merge_part


def _failure(query: Any, spark: SparkSession) -> Exception | None:
    """The error that ended a stream, with the texts of all its causes: PySpark's own error has only the first."""
    from pyspark.errors import PySparkException

    java, jvm = query._jsq.exception(), spark._jvm
    if java.isEmpty() or jvm is None:
        return None
    return PySparkException(message=str(jvm.org.apache.spark.util.Utils.exceptionString(java.get())))


@contextmanager
def _explained_stream(settings: Score, source: Source) -> Iterator[None]:
    """Like :func:`explained`; also replaces errors that end a stream by one line that says what to do."""
    from pyspark.errors import AnalysisException, UnsupportedOperationException

    try:
        with explained(str(settings.output)):
            yield
    except spark_failures() as error:
        if isinstance(error, SparkdlError):
            raise
        for pattern, meaning in _SAYS.items():
            if re.search(pattern, str(error)):
                kind = CheckpointError if "damaged" in meaning else DataError
                raise kind(meaning.format(checkpoint=settings.checkpoint, source=source.place)) from None
        if isinstance(error, AnalysisException | UnsupportedOperationException):
            raise DataError(f"cannot stream to {settings.format} {settings.output}: {first_line(error)}") from None
        raise
