"""A column of images, each of them an encoded file or raw pixels, becomes pixels of one size. Runs anywhere.

Bytes of exactly the size that is asked for, one a value, are pixels already, unless they begin as an image file does.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkdl.preprocessing.decode_image import NO_IMAGE, SIGNATURES, NotAnImageError, decode_image, is_image_file

__all__ = ["DecodedImages", "decoded_images", "in_parts"]

_PIXEL_BYTES = 1 << 26
"""Pixels that are in memory at a time, of rows whose files take a fraction of that."""


class DecodedImages(NamedTuple):
    """The pixels of some images, and which of them have none."""

    pixels: pa.Array
    """Height x width x channels bytes a row; null where there was no image, and where it is refused."""
    refused: dict[int, tuple[str, str]]
    """By row, as a :class:`NotAnImageError` says it: which kind of problem it is, and what exactly."""


def decoded_images(images: pa.Array, shape: Sequence[int]) -> DecodedImages:
    """The pixels of a binary column whose images become ``shape``: (height, width, channels).

    A column of nothing but pixels comes back as it is.
    """
    files = set(_files(images, math.prod(shape)))
    if not files:
        return DecodedImages(images, {})
    values, refused = list[bytes | None](), dict[int, tuple[str, str]]()
    for row, image in enumerate(images):  # of files, only one is copied at a time
        content = image.as_py()
        try:
            values.append(decode_image(content, shape).tobytes() if row in files else content)
        except NotAnImageError as error:
            kind, detail = error.args
            if kind == NO_IMAGE:
                raw = f"{math.prod(shape):,} of {' x '.join(map(str, shape))} raw pixels"
                detail = f"{len(content):,} bytes, not the {raw}, and {detail}"
            values.append(None)
            refused[row] = kind, detail
    return DecodedImages(pa.array(values, images.type), refused)


def in_parts(batches: Iterable[pa.RecordBatch], shape: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches that are small enough for their images to be decoded."""
    rows = max(_PIXEL_BYTES // math.prod(shape), 1)
    for batch in batches:
        for begin in range(0, len(batch), rows):
            yield batch.slice(begin, rows)


def _files(images: pa.Array, size: int) -> list[int]:
    """The rows that are not raw pixels of this size, or null."""
    other = pc.not_equal(pc.binary_length(images), size)
    maybe = pc.and_(pc.invert(other), pc.match_substring_regex(images, SIGNATURES))
    if pc.any(maybe).as_py():
        files = [row for row in pc.indices_nonzero(maybe).to_pylist() if is_image_file(images[row].as_py())]
        other = pc.or_(other, pa.array(np.isin(np.arange(len(images)), files)))
    rows: list[int] = pc.indices_nonzero(other).to_pylist()
    return rows
