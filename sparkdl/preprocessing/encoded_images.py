"""Decodes a column of image files or raw pixels to pixels of one size. Runs anywhere.

A value with exactly one byte per pixel and channel is raw pixels, unless it begins as an image file does.
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
"""The limit for decoded pixels that are in memory at a time; files are far smaller."""


class DecodedImages(NamedTuple):
    """The pixels of some images, and the images that were refused."""

    pixels: pa.Array
    """Height x width x channels bytes for each row; null if the row has no image, or it was refused."""
    refused: dict[int, tuple[str, str]]
    """By row, the kind of the problem and its details; see :class:`NotAnImageError`."""


def decoded_images(images: pa.Array, shape: Sequence[int]) -> DecodedImages:
    """The pixels of a binary column of images, decoded to ``shape``: (height, width, channels).

    A column that has only raw pixels is returned unchanged.
    """
    files = set(_files(images, math.prod(shape)))
    if not files:
        return DecodedImages(images, {})
    values, refused = list[bytes | None](), dict[int, tuple[str, str]]()
    for row, image in enumerate(images):  # one file is copied at a time
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
    """The rows that hold neither null nor raw pixels of this size."""
    other = pc.not_equal(pc.binary_length(images), size)
    maybe = pc.and_(pc.invert(other), pc.match_substring_regex(images, SIGNATURES))
    if pc.any(maybe).as_py():
        files = [row for row in pc.indices_nonzero(maybe).to_pylist() if is_image_file(images[row].as_py())]
        other = pc.or_(other, pa.array(np.isin(np.arange(len(images)), files)))
    rows: list[int] = pc.indices_nonzero(other).to_pylist()
    return rows
