"""Open a raw table as a DataFrame, whatever it is stored as."""

from typing import TYPE_CHECKING, Literal

from sparkdl.data.sources.debian import read_debian
from sparkdl.data.sources.dictionary import read_dictionary
from sparkdl.data.sources.idx import read_idx
from sparkdl.data.sources.images import read_images
from sparkdl.data.sources.wordnet import read_wordnet
from sparkdl.data.sources.xc import read_xc
from sparkdl.errors import DataError
from sparkdl.sessions import python_types
from sparkdl.settings import Source
from sparkdl.storage import spark_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["known_image_shape", "open_source"]

_VECTORS = {"pyspark.ml.linalg.VectorUDT", "pyspark.ml.linalg.MatrixUDT"}
_OWN = {"debian": read_debian, "dictionary": read_dictionary, "wordnet": read_wordnet, "xc": read_xc}
"""Formats whose readers say themselves what is wrong."""
_SHAPE_KEY = "sparkdl.image_shape"
"""In a column's metadata: the (height, width, channels) of its images."""


def open_source(source: Source, spark: "SparkSession", *, on_error: Literal["fail", "null"] = "fail") -> "DataFrame":
    """The raw rows of a source. Runs on the driver; rows are read by tasks.

    ``idx`` gives the columns ``image`` (binary, one byte a pixel), ``label`` and ``split`` (``train`` or ``test``, from
    the file's name); ``images`` gives ``image``, ``label`` (the sub-folder's name) and ``path``; for ``debian``,
    ``dictionary``, ``wordnet`` and ``xc`` see the functions that read them. All other formats give what Spark's reader
    gives. Raises :class:`DataError` when the source is missing, empty or cannot be
    read. Files of ``images`` that cannot be decoded make the tasks fail; with ``on_error="null"``, their image is null.
    """
    from pyspark.errors import AnalysisException, IllegalArgumentException

    try:
        if source.format in ("idx", "images"):
            is_idx = source.format == "idx"
            rows, shape = read_idx(source, spark) if is_idx else read_images(source, spark, on_error=on_error)
            rows = rows.withMetadata("image", {_SHAPE_KEY: list(shape)})
        elif source.format in _OWN:
            return _OWN[source.format](source, spark)
        elif source.format == "table":
            rows = spark.read.options(**source.options).table(str(source.path))
        else:
            rows = spark.read.format(source.format).options(**source.options).load(spark_url(str(source.path)))
        _refuse_foreign_types(rows, source)
        empty = rows.isEmpty()
    except (AnalysisException, IllegalArgumentException) as error:
        raise DataError(
            f"cannot read the {source.format} source {source.path}: {_first_line(error)}. "
            "Check the path and the format."
        ) from None
    if empty:
        raise DataError(f"the {source.format} source {source.path} is empty; there is nothing to learn from")
    return rows


def _refuse_foreign_types(rows: "DataFrame", source: Source) -> None:
    strange = [name for name in python_types(rows) if name not in _VECTORS]
    if strange:
        raise DataError(
            f"the {source.format} source {source.path} has a column whose type is the Python class {strange[0]!r}, "
            "which could run any code; it is not read. Write the rows again with columns of Spark's own types."
        )


def known_image_shape(rows: "DataFrame", column: str) -> tuple[int, ...] | None:
    """The shape of a column's images, where the source knew it. Runs on the driver."""
    shape = rows.schema[column].metadata.get(_SHAPE_KEY)
    return tuple(shape) if shape else None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")
