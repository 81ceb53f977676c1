"""New rows of a source scored and added to a table, each once, by Spark's Structured Streaming. Runs on the driver."""

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
"""How often it is seen whether a stream has ended."""
_COUNTS = "sparkdl"
"""What Spark calls the numbers of rows that a part of a stream had."""
_ONCE = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
"""By these Delta knows a part of a stream that it has merged already."""
_SAYS = {
    r"CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming queries are concurrently using|ConcurrentUpdateLogException": (
        "another job uses the checkpoint {checkpoint}, or files are missing in it: wait for the other's end, or remove"
        " the checkpoint and the output to score all rows again"
    ),
    r"DELTA_SOURCE_TABLE_IGNORE_CHANGES|DELTA_SOURCE_IGNORE_DELETE": (
        "rows of {source} were updated or deleted, which a stream of its rows cannot follow: read its changes by"
        " `options: {{readChangeFeed: true}}` with `mode: merge` and a new checkpoint, or pass them over by"
        " `options: {{skipChangeCommits: true}}`"
    ),
    r"DELTA_MISSING_CHANGE_DATA|change data was not recorded": (
        "{source} did not keep its changes: ALTER TABLE ... SET TBLPROPERTIES (delta.enableChangeDataFeed = true), and"
        " let the stream begin at that version (`startingVersion`)"
    ),
    r"DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE|was the table (changed|deleted)": (
        "{source} is another table than the one of which the checkpoint {checkpoint} was made; choose a new one"
    ),
    r"DELTA_SCHEMA_CHANGED|Detected (incompatible )?schema change": (
        "the columns of {source} have changed; start the job again, with which it reads the new ones"
    ),
    r"OffsetSeqLog|CommitLog|HDFSMetadataLog|StreamMetadata|FileStreamSourceLog|FileStreamSinkLog"
    r"|(batches|offsets|logs?) .{0,40}(are|is) missing|Malformed log file|Incomplete log file": (
        "the checkpoint {checkpoint} is damaged; remove it and the output to score all rows again"
    ),
}
"""What Spark or Delta says of a stream that cannot go on, and what to do. The first that fits is told."""


@dataclass
class _Counts:
    """How many rows each part of a stream had, and how many of them without a prediction."""

    rows: dict[int, int] = field(default_factory=dict)
    failed: dict[int, int] = field(default_factory=dict)

    def add(self, number: int, rows: int, failed: int) -> None:
        self.rows[number], self.failed[number] = rows, failed

    def take(self, query: Any) -> None:
        """Add what Spark has counted itself; it forgets all but the last parts."""
        for progress in query.recentProgress:
            if found := (progress.get("observedMetrics") or {}).get(_COUNTS):
                self.add(progress["batchId"], found["rows"], found["failed"])


def check_stream_output(checkpoint: StreamCheckpoint, settings: Score, spark: SparkSession) -> None:
    """Raise :class:`~sparkdl.errors.DatasetError` where predictions would be written twice, or not at all."""
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
    """Score the rows of a stream that its checkpoint has not seen, and write their predictions, each once.

    ``score`` appends predictions to rows. The stream ends once all that was there is scored; with
    ``settings.interval``, it looks for more until Ctrl-C or SIGTERM ends it, and what was not whole then is scored by
    the next one. Rows are added by the sink of the format, which knows what it has got already; or merged, where Delta
    knows that, and other tables end up with the same rows.

    Raises :class:`DataError` as tasks found it, and where the source cannot be followed, and
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
        spark = part.sparkSession  # the stream's own, whose settings are nobody else's
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
    """What a stream has failed with, and in its text all that caused it: Python's own shows the first of them alone."""
    from pyspark.errors import PySparkException

    java, jvm = query._jsq.exception(), spark._jvm
    if java.isEmpty() or jvm is None:
        return None
    return PySparkException(message=str(jvm.org.apache.spark.util.Utils.exceptionString(java.get())))


@contextmanager
def _explained_stream(settings: Score, source: Source) -> Iterator[None]:
    """As :func:`explained`, and for what ends a stream: the error that says it in one line."""
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
