"""A folder of image files with one sub-folder a class, decoded and resized by tasks."""

import io
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkdl.config import Source
from sparkdl.data.storage import join, spark_url
from sparkdl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_images"]

_CHANNELS = 3
_EXTENSIONS = "*.{jpg,jpeg,png,bmp,gif,webp,JPG,JPEG,PNG}"


def read_images(source: Source, spark: "SparkSession") -> "tuple[DataFrame, tuple[int, ...]]":
    """The images of a folder as RGB of one size, and their (height, width, channels). Runs on the driver.

    Tasks decode and resize, with Pillow. Raises :class:`ConfigError` when the options lack ``height`` or ``width``; a
    file that cannot be decoded is a :class:`DataError` that names it, when rows are read.
    """
    try:
        height, width = (int(source.options[side]) for side in ("height", "width"))
    except KeyError as missing:
        raise ConfigError(
            f"source.options needs {missing} for images, in pixels; all are resized to one size"
        ) from None
    files = (
        spark.read.format("binaryFile")
        .option("pathGlobFilter", _EXTENSIONS)
        .load(join(spark_url(source.path), "*"))
        .select("path", "content")
    )
    decode = _decoder(height, width)
    return files.mapInArrow(decode, "image binary, label string, path string"), (height, width, _CHANNELS)


def _decoder(height: int, width: int) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            paths = batch.column(0).to_pylist()
            pixels = [
                _decode(content, path, height, width)
                for path, content in zip(paths, batch.column(1).to_pylist(), strict=True)
            ]
            labels = [path.rsplit("/", 2)[-2] for path in paths]
            yield pa.RecordBatch.from_arrays(
                [pa.array(pixels, pa.binary()), pa.array(labels, pa.string()), batch.column(0)],
                names=["image", "label", "path"],
            )

    return decode


def _decode(content: bytes, path: str, height: int, width: int) -> bytes:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content)) as image:
            return image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR).tobytes()
    except OSError as error:
        raise DataError(f"{path} is not an image that can be decoded: {error}; repair or remove it") from None
