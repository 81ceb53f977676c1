"""Decodes images in a column before rows are examined. Runs on the driver, lazily; Spark tasks decode."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkdl.data.bad_rows import COUNT, Problem
from sparkdl.data.preparing.features import InputPlan
from sparkdl.data.sql import identifier
from sparkdl.data.working_columns import WORKING
from sparkdl.errors import DataError
from sparkdl.preprocessing.decode_image import CHANNELS, IMAGE_PROBLEMS, NO_IMAGE, SIGNATURES
from sparkdl.preprocessing.encoded_images import decoded_images, in_parts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FILE_BYTES", "decoded", "decoding_problems", "with_files"]

FILE_BYTES = 1 << 21
"""About the size of a large encoded image, for limiting the rows that a task gets at a time."""
_UNDECODED = f"{WORKING}undecoded"
"""The prefix of working columns with the kind of problem of an image that cannot be decoded, or null."""
_BEGIN_BYTES = 12
"""The number of first bytes by which a file's format is recognised."""


def with_files(rows: "DataFrame", inputs: InputPlan) -> list[int]:
    """The numbers of the image inputs that contain encoded files, recognised by their first bytes.

    Spark tasks read rows until they find one. Raises :class:`DataError` if ``image_shape`` has a number of channels to
    which files cannot be decoded.
    """
    return [number for number, image in enumerate(_images(inputs)) if _has_files(rows, image)]


def _images(inputs: InputPlan) -> list[InputPlan]:
    """The inputs that are images."""
    return [each for each in (inputs, *(part.plan for part in inputs.parts.values())) if each.shape is not None]


def _has_files(rows: "DataFrame", inputs: InputPlan) -> bool:
    from pyspark.sql import functions as sf

    if inputs.shape is None or inputs.knows_pixels:
        return False
    begin = sf.decode(sf.substring(sf.col(identifier(inputs.source)), 1, _BEGIN_BYTES), "ISO-8859-1")
    if rows.select(begin.alias("begin")).where(sf.col("begin").rlike(SIGNATURES)).isEmpty():
        return False
    if inputs.shape[2] not in CHANNELS:
        raise DataError(
            f"column {inputs.source!r} has encoded images, which are decoded to 1 channel or to 3, not to"
            f" {inputs.shape[2]}; set the last number of `image_shape` to 1 or 3"
        )
    return True


def decoded(rows: "DataFrame", inputs: InputPlan, numbers: Sequence[int]) -> "DataFrame":
    """The rows with pixels in place of encoded images, for the inputs that :func:`with_files` has found.

    :func:`decoding_problems` lists the problems of images that cannot be decoded. ``rows`` already have their hashes:
    these are of the encoded files, so that they do not depend on the size or the decoder.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    images = _images(inputs)
    for number in numbers:
        image, undecoded = images[number], f"{_UNDECODED}{number}"
        assert image.shape is not None
        place = rows.columns.index(image.source)
        fields = [*rows.schema.fields, StructField(undecoded, StringType())]
        fields[place] = StructField(image.source, fields[place].dataType, True)
        rows = rows.mapInArrow(_decoder(place, image.shape, undecoded), StructType(fields))
    return rows


def decoding_problems(rows: "DataFrame", inputs: InputPlan) -> list[Problem]:
    """The problems that encoded images can have; none for rows without the columns of :func:`decoded`."""
    from pyspark.sql import functions as sf

    return [
        Problem(
            f"column {image.source!r} has {COUNT} rows with {kind}{_either(image) if kind == NO_IMAGE else ''}",
            "repair or drop them",
            sf.col(f"{_UNDECODED}{number}").eqNullSafe(kind),
        )
        for number, image in enumerate(_images(inputs))
        if f"{_UNDECODED}{number}" in rows.columns
        for kind in IMAGE_PROBLEMS
    ]


def _either(image: InputPlan) -> str:
    return f" (a file of one, or {' x '.join(map(str, image.shape or ()))} bytes)"


def _decoder(
    place: int, shape: Sequence[int], undecoded: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in in_parts(batches, shape):
            pixels, refused = decoded_images(batch.column(place), shape)
            kinds = [refused[row][0] if row in refused else None for row in range(len(batch))]
            columns = [*batch.columns, pa.array(kinds, pa.string())]
            columns[place] = pixels
            yield pa.RecordBatch.from_arrays(columns, [*batch.schema.names, undecoded])

    return decode
