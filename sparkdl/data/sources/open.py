"""Opens a raw table of any format as a DataFrame."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sparkdl.data.job_errors import own_errors
from sparkdl.data.sources.debian import read_debian
from sparkdl.data.sources.dictionary import read_dictionary
from sparkdl.data.sources.format_packages import known_format
from sparkdl.data.sources.idx import read_idx
from sparkdl.data.sources.images import read_images
from sparkdl.data.sources.table_formats import refuse_files_of_tables
from sparkdl.data.sources.wordnet import read_wordnet
from sparkdl.data.sources.xc import read_xc
from sparkdl.errors import DataError
from sparkdl.sessions import python_types
from sparkdl.settings import Source
from sparkdl.storage import PATTERN_SIGNS, exists, list_folder, spark_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "OF_IMAGES",
    "OWN",
    "first_line",
    "known_image_shape",
    "loaded",
    "named",
    "open_source",
    "refuse_foreign_types",
]

_VECTORS = {"pyspark.ml.linalg.VectorUDT", "pyspark.ml.linalg.MatrixUDT"}
OF_IMAGES = {"idx": read_idx, "images": read_images}
OWN = {"debian": read_debian, "dictionary": read_dictionary, "wordnet": read_wordnet, "xc": read_xc}
"""The readers of sparkdl's own formats, which raise their own errors."""
_SHAPE_KEY = "sparkdl.image_shape"
"""The key in a column's metadata with the (height, width, channels) of its images."""


def open_source(source: Source, spark: "SparkSession") -> "DataFrame":
    """The raw rows of a source. Runs on the driver; Spark tasks read the rows.

    ``idx`` has the columns ``image`` (binary, one byte per pixel), ``label`` and ``split`` (``train`` or ``test``, from
    the file's name). ``images`` has ``image``, ``label`` (the sub-folder's name) and ``path``, and, with a path for
    each split, ``split``. For ``debian``, ``dictionary``, ``wordnet`` and ``xc``, see the functions that read them. All
    other formats have the columns of Spark's reader. In ``images`` and ``xc``, a row that cannot be used has nulls, and
    the column :data:`~sparkdl.data.bad_rows.PROBLEM` has the reason (``kind``, ``file``, ``line``, ``detail``); it is
    null for good rows. Raises :class:`DataError` if the source is missing, empty or cannot be read.
    """
    from pyspark.errors import AnalysisException, IllegalArgumentException

    with own_errors(source.place):
        try:
            if source.format in OWN:
                return OWN[source.format](source, spark)
            if source.format in OF_IMAGES:
                images, shape = OF_IMAGES[source.format](source, spark)
                return images.withMetadata("image", {_SHAPE_KEY: list(shape)})
            refuse_files_of_tables(source)
            with known_format(source.format, spark.version):
                rows: DataFrame = loaded(spark.read, source)
                refuse_foreign_types(rows, source)
                empty = rows.isEmpty()
        except (AnalysisException, IllegalArgumentException) as error:
            raise DataError(
                f"cannot read {named(source)}: {first_line(error)}. Check the path and the format{_of_hidden(source)}."
            ) from None
    if empty:
        raise DataError(f"{named(source)} is empty; there is nothing to learn from{_of_hidden(source)}")
    return rows


def named(source: Source) -> str:
    """The source in words."""
    return f"the {source.format} source" + (f" {source.path}" if source.path else "")


def loaded(reader: Any, source: Source) -> Any:
    """The rows, or the stream of rows, that a reader of Spark's loads from a source."""
    reader = reader.options(**source.options)
    if source.format == "table":
        return reader.table(str(source.path))
    reader = reader.format(source.format)
    if source.path is None:
        return reader.load()
    path = str(source.path)
    is_name = not source.is_of_files and "/" not in path  # the name of a table or a topic, which its reader interprets
    return reader.load(path if is_name else spark_url(path, literal=_is_there(source)))


def _is_there(source: Source) -> bool:
    """Whether characters of a pattern in the path belong to the name of an existing file."""
    return any(sign in str(source.path) for sign in PATTERN_SIGNS) and exists(str(source.path))


def _of_hidden(source: Source) -> str:
    """A hint about hidden files, if the path is one or contains some."""
    if not source.is_of_files or source.format in ("delta", "hudi"):  # these tables keep their logs in hidden folders
        return ""
    with suppress(Exception):  # fsspec may not support this storage, although Spark does
        path = str(source.path)
        names = [path.rstrip("/").rpartition("/")[2], *(entry.name for entry in list_folder(path))]
        hidden = [name for name in names if name.startswith(("_", ".")) and not name.endswith(("_SUCCESS", ".crc"))]
        if hidden:
            return f"; Spark skips files whose names begin with _ or a dot, such as {hidden[0]}: rename them"
    return ""


def refuse_foreign_types(rows: "DataFrame", source: Source) -> None:
    """Raise :class:`DataError` for columns whose types are Python classes, because a schema could run their code."""
    strange = [name for name in python_types(rows) if name not in _VECTORS]
    if strange:
        raise DataError(
            f"{named(source)} has a column whose type is the Python class {strange[0]!r}, "
            "which could run any code, so it is not read. Write the rows again with columns of Spark's own types."
        )


def known_image_shape(rows: "DataFrame", column: str) -> tuple[int, ...] | None:
    """The shape of a column's images, if the source has determined it. Runs on the driver."""
    shape = rows.schema[column].metadata.get(_SHAPE_KEY)
    return tuple(shape) if shape else None


def first_line(error: Exception) -> str:
    """The first line of an error, without its full stop."""
    return str(error).strip().splitlines()[0].rstrip(".")
