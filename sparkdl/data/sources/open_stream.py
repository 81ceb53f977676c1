"""Opens a raw table as a stream: a DataFrame of its current and future rows. Runs on the driver."""

from typing import TYPE_CHECKING, Any

from sparkdl.data.job_errors import own_errors
from sparkdl.data.sources.format_packages import known_format
from sparkdl.data.sources.open import first_line, loaded, named, refuse_foreign_types
from sparkdl.data.sources.table_formats import refuse_files_of_tables
from sparkdl.errors import ConfigError, DataError
from sparkdl.settings import Source
from sparkdl.settings.source import OWN_FORMATS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["keeps_columns", "open_stream"]

_TABLES_IN_FOLDERS = {"delta", "hudi"}
_VERSIONS = {"versionasof", "timestampasof", "snapshot-id", "as-of-timestamp"}
"""Options, in lower case, that read a past version of a table, which gets no new rows."""


def open_stream(source: Source, spark: "SparkSession", columns: "StructType | None" = None) -> "DataFrame":
    """The rows of a source as a stream. Spark tasks read the rows.

    ``columns`` are the columns of files; by default those of the existing files. Raises :class:`ConfigError` for a
    format or an option that does not support streaming, and :class:`DataError` if Spark cannot stream from the source.
    """
    from pyspark.errors import AnalysisException, IllegalArgumentException, UnsupportedOperationException

    if source.format in OWN_FORMATS:
        raise ConfigError(
            f"score.stream: {source.format} is a format of data sets that do not change; stream from files that"
            " Spark reads (parquet, json, csv, orc, avro), or from a table (delta, iceberg)"
        )
    if past := [name for name in source.options if name.lower() in _VERSIONS]:
        raise ConfigError(
            f"score.stream: the option {past[0]!r} reads a past version of a table, which gets no new rows; remove it,"
            " or set where the stream begins (`startingVersion` of a Delta table)"
        )
    with own_errors(source.place), known_format(source.format, spark.version):
        try:
            reader: Any = spark.readStream
            if keeps_columns(source) and columns is None:
                columns = _columns_of_files(source, spark)
            rows: DataFrame = loaded(reader.schema(columns) if columns else reader, source)
            refuse_foreign_types(rows, source)
        except (AnalysisException, IllegalArgumentException, UnsupportedOperationException) as error:
            raise DataError(f"cannot stream from {named(source)}: {first_line(error)}") from None
    return rows


def keeps_columns(source: Source) -> bool:
    """Whether the columns of this source have to be recorded for its stream, because later files may have others."""
    return source.is_of_files and source.format not in _TABLES_IN_FOLDERS


def _columns_of_files(source: Source, spark: "SparkSession") -> "StructType":
    """The columns of the existing files. Raises :class:`DataError` if there is no readable file yet."""
    from pyspark.errors import AnalysisException, IllegalArgumentException

    refuse_files_of_tables(source)
    try:
        rows: DataFrame = loaded(spark.read, source)
        refuse_foreign_types(rows, source)
        return rows.schema
    except (AnalysisException, IllegalArgumentException) as error:
        raise DataError(
            f"the columns of {named(source)} are not known: {first_line(error)}. A stream takes them from the files"
            " that exist when it first starts: add a file that has all columns"
        ) from None
