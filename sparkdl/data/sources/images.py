"""A folder of image files with one sub-folder a class, decoded and resized by tasks."""

import io
import logging
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from sparkdl.errors import ConfigError, DataError
from sparkdl.masking import without_credentials
from sparkdl.settings import Source
from sparkdl.storage import join, read_file, spark_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_images"]

_CHANNELS = 3
_BATCH_BYTES = 1 << 26
"""Decoded pixels that a task hands to Spark at a time."""
_IMAGE_NAME = r"(?i)\.(jpe?g|png|bmp|gif|webp|tiff?)$"
_SHOWN_FILES = 5
"""Files passed over that a warning names; all are counted."""

_log = logging.getLogger(__name__)


def read_images(
    source: Source, spark: "SparkSession", *, on_error: Literal["fail", "null"]
) -> "tuple[DataFrame, tuple[int, ...]]":
    """The images of a folder as RGB of one size, and their (height, width, channels). Runs on the driver.

    Tasks decode and resize, with Pillow. Files whose names are not those of images are passed over, and a warning
    counts them. Raises :class:`ConfigError` when the options lack ``height`` or ``width``; a
    file that cannot be decoded is a :class:`DataError` that names it, when rows are read, or no image.
    """
    try:
        height, width = (int(source.options[side]) for side in ("height", "width"))
    except KeyError as missing:
        raise ConfigError(
            f"source.options needs {missing} for images, in pixels; all are resized to one size"
        ) from None
    files = spark.read.format("binaryFile").load(join(spark_url(str(source.path)), "*")).select("path")
    is_image = files["path"].rlike(_IMAGE_NAME)
    _warn_of_others(files.where(~is_image), str(source.path))
    rows = files.where(is_image).mapInArrow(
        partial(_decode, height, width, on_error), "image binary, label string, path string"
    )
    return rows, (height, width, _CHANNELS)


def _warn_of_others(files: "DataFrame", folder: str) -> None:
    if count := files.count():
        names = [row.path.rpartition("/")[2] for row in files.orderBy("path").limit(_SHOWN_FILES).collect()]
        shown = ", ".join(names) + (", ..." if count > len(names) else "")
        place = without_credentials(folder)
        _log.warning("%s: %d files are no images by their names and were passed over: %s", place, count, shown)


def _decode(height: int, width: int, on_error: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = max(_BATCH_BYTES // (height * width * _CHANNELS), 1)
    for batch in batches:
        for start in range(0, len(batch), rows):
            paths = batch.column(0).slice(start, rows)
            names = paths.to_pylist()
            pixels = pa.array([_pixels(path, height, width, on_error) for path in names], pa.binary())
            labels = pa.array([path.rsplit("/", 2)[-2] for path in names], pa.string())
            yield pa.RecordBatch.from_arrays([pixels, labels, paths], names=["image", "label", "path"])


def _pixels(path: str, height: int, width: int, on_error: str) -> bytes | None:
    from PIL import Image

    content = read_file(path)
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.mode.startswith(("I", "F")):  # Pillow would make all that is over 255 white
                raise OSError(f"it has more than 8 bits a channel (mode {image.mode})")
            return image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR).tobytes()
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # the second of PNG files
        if on_error == "null":
            return None
        raise DataError(f"{path} is not an image that can be decoded: {error}; repair, convert or remove it") from None
