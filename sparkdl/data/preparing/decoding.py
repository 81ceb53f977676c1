"""Encoded images in a column become pixels before rows are examined. Runs on the driver, lazily; tasks decode."""

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
"""About the most that an encoded image takes: no more rows are handed to a task than memory has room for such."""
_UNDECODED = f"{WORKING}undecoded"
"""With a number behind it: the working column that says which kind of problem an image is, or null."""
_BEGIN_BYTES = 12
"""So many show which format a file has."""


def with_files(rows: "DataFrame", inputs: InputPlan) -> list[int]:
    """Which of the inputs that are images are encoded: some begin as files of images do.

    Tasks read rows until they find such a one. Raises :class:`DataError` where ``image_shape`` asks for channels that
    files are not decoded to.
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
    """The rows with pixels in place of encoded images, of the inputs that :func:`with_files` has found.

    What is wrong with the others, :func:`decoding_problems` says. ``rows`` have the hashes that are made of them
    already: those of files, which no other size or decoder changes.
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
    """What can be wrong with encoded images; nothing of rows that :func:`decoded` has not made."""
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
