"""The options of Spark and its readers that a configuration file may set: only amounts, times, and how to read.

A file may come from a stranger, and some settings of Spark and Hadoop load classes, open ports, start programs or
choose the cluster. Options on the command line or in Python come from the user, and are not restricted.
"""

import re
from pathlib import Path
from typing import Any

from sparkdl.errors import ConfigError
from sparkdl.settings.explain import nearest
from sparkdl.settings.source import FILE_FORMATS, OWN_FORMATS, TABLE_FORMATS

__all__ = ["check_options"]

_SPARK = """
    app.name log.level
    driver.cores driver.memory driver.memoryOverhead driver.memoryOverheadFactor driver.maxResultSize
    executor.cores executor.instances executor.memory executor.memoryOverhead executor.memoryOverheadFactor
    executor.pyspark.memory executor.heartbeatInterval python.worker.memory python.worker.reuse
    memory.fraction memory.storageFraction memory.offHeap.enabled memory.offHeap.size
    cores.max task.cpus task.maxFailures default.parallelism locality.wait network.timeout speculation
    dynamicAllocation.enabled dynamicAllocation.minExecutors dynamicAllocation.maxExecutors
    dynamicAllocation.initialExecutors
    reducer.maxSizeInFlight shuffle.compress shuffle.spill.compress shuffle.file.buffer
    shuffle.io.maxRetries shuffle.io.retryWait shuffle.sort.bypassMergeThreshold
    broadcast.blockSize broadcast.compress rdd.compress io.compression.lz4.blockSize io.compression.zstd.level
    kryoserializer.buffer kryoserializer.buffer.max rpc.message.maxSize
    sql.shuffle.partitions sql.autoBroadcastJoinThreshold sql.broadcastTimeout sql.caseSensitive sql.ansi.enabled
    sql.session.timeZone sql.debug.maxToStringFields sql.legacy.timeParserPolicy
    sql.files.maxPartitionBytes sql.files.maxRecordsPerFile sql.files.minPartitionNum sql.files.maxPartitionNum
    sql.files.openCostInBytes sql.files.ignoreCorruptFiles sql.files.ignoreMissingFiles
    sql.parquet.compression.codec sql.parquet.filterPushdown sql.parquet.mergeSchema sql.parquet.binaryAsString
    sql.parquet.int96AsTimestamp sql.parquet.enableVectorizedReader sql.parquet.columnarReaderBatchSize
    sql.orc.compression.codec sql.orc.filterPushdown sql.orc.mergeSchema sql.orc.enableVectorizedReader
    sql.adaptive.enabled sql.adaptive.advisoryPartitionSizeInBytes sql.adaptive.autoBroadcastJoinThreshold
    sql.adaptive.coalescePartitions.enabled sql.adaptive.coalescePartitions.minPartitionSize
    sql.adaptive.coalescePartitions.initialPartitionNum sql.adaptive.coalescePartitions.parallelismFirst
    sql.adaptive.localShuffleReader.enabled sql.adaptive.skewJoin.enabled sql.adaptive.skewJoin.skewedPartitionFactor
    sql.execution.arrow.pyspark.enabled sql.execution.arrow.maxRecordsPerBatch
    sql.execution.arrow.pyspark.fallback.enabled
    ui.enabled ui.showConsoleProgress ui.retainedJobs ui.retainedStages ui.retainedTasks
"""
"""Harmless settings of the embedded Spark: amounts, times and switches; their names without ``spark.``."""

_FORMATS = FILE_FORMATS | OWN_FORMATS | TABLE_FORMATS
"""Formats that only read a path or a table of the catalog. Others connect to addresses, or are names of classes."""
_READER = re.compile(r"\w+")
"""Options of Spark's own readers are plain words. Options with a dot go to Hadoop, and may name a class to load."""


def check_options(tree: dict[str, Any], path: Path) -> None:
    """Refuse options that a file must not set. Runs on the driver.

    ``tree`` is the content of the file ``path``, before it is validated and before the command line is applied. Raises
    :class:`ConfigError`, which names the option and other ways to set it.
    """
    harmless = {f"spark.{name}" for name in _SPARK.split()}
    for option in _options(tree, "cluster"):
        if option not in harmless:
            raise ConfigError(
                f"{path}: cluster.options: {option!r} is not among the settings of Spark that a file may set; if you"
                f" need it, use cluster.options.{option}=... on the command line, spark-submit --conf {option}=...,"
                " SparkSession.builder.config(...) in Python, or Spark's own spark-defaults.conf"
            )
    for key in ("prepare.source.format", "score.source.format", "score.format"):
        name = _below(tree, *key.split("."))
        if isinstance(name, str) and name.lower() not in {known.lower() for known in _FORMATS}:
            raise ConfigError(
                f"{path}: {key}: {name!r} is not among the formats that a file may name;"
                f" {nearest(name, sorted(_FORMATS))}. Other names may be classes that Spark would load: if you need"
                f" this one, use {key}={name} on the command line"
            )
    for section in ("prepare", "score"):
        for option in _options(tree, section, "source"):
            if not _READER.fullmatch(option):
                key = f"{section}.source.options"
                raise ConfigError(
                    f"{path}: {key}: {option!r} is a setting of Hadoop, which a file may not set; if you need it, use"
                    f" {key}.{option}=... on the command line, or spark-submit --conf spark.hadoop.{option}=..."
                )


def _options(tree: Any, *section: str) -> list[str]:
    """The names of the options in a section, if there is such a section and it holds options."""
    options = _below(tree, *section, "options")
    return [str(name) for name in options] if isinstance(options, dict) else []


def _below(tree: Any, *keys: str) -> Any:
    """The value under nested keys; None if there is none."""
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree
