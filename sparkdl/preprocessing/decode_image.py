"""Decodes image files to pixels of one size. Runs in tasks and in servers."""

import io
import re
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

__all__ = [
    "CHANNELS",
    "IMAGE_PROBLEMS",
    "NO_IMAGE",
    "SIGNATURES",
    "NotAnImageError",
    "decode_image",
    "is_image_file",
]

CHANNELS = {1: "L", 3: "RGB"}
"""The possible numbers of channels, with Pillow's mode for each."""
SIGNATURES = r"(?s)\A(?:\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|BM.{4}\x00{4}|RIFF.{4}WEBP|II[*+]\x00|MM\x00[*+])"
"""Matches the beginning of JPEG, PNG, GIF, BMP, WebP and TIFF files, in Python, Arrow and Java."""
NO_IMAGE = "no image"
_TOO_LARGE = "an image of too many pixels"
_DAMAGED = "an image that cannot be decoded"
_NO_RANGE = "an image without a range"
_OTHER_CHANNELS = "an image of other channels"
IMAGE_PROBLEMS = (NO_IMAGE, _TOO_LARGE, _DAMAGED, _NO_RANGE, _OTHER_CHANNELS)
"""All kinds of problems with the bytes of a file, by which they are counted."""
_FORMATS = "BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP"
"""The allowed formats. Pillow has more, and starts other programs for some of them."""
_SHOWN_BYTES = 16


class NotAnImageError(Exception):
    """Bytes that cannot be decoded. The arguments are one of :data:`IMAGE_PROBLEMS`, and details."""


def decode_image(content: bytes, shape: Sequence[int]) -> NDArray[np.uint8]:
    """The picture as an array of ``shape`` (height, width, channels), resized bilinearly.

    The picture is rotated by its EXIF orientation (tag 274). Of several frames or pages, the first is taken. Values of
    16 bits keep their upper 8, as in Pillow's own conversion of colours; transparency is ignored. Three channels are
    red, green and blue; a single channel is their luma (ITU-R 601-2). Raises :class:`NotAnImageError` for a file that
    cannot be decoded, that has more pixels than Pillow considers safe (178,956,970) or values of 32 bits, whose range
    is not known; and if ``shape`` has neither one nor three channels.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    height, width, channels = shape
    mode = CHANNELS.get(channels)
    if not content:
        raise NotAnImageError(NO_IMAGE, "the file is empty")
    try:
        # Pillow's warnings about unusual metadata would fill the logs of executors.
        with warnings.catch_warnings(action="ignore"), _opened(content) as opened:
            if mode is None:
                raise NotAnImageError(_OTHER_CHANNELS, f"files are decoded to 1 or 3 channels, not to {channels}")
            opened.load()
            ImageOps.exif_transpose(opened, in_place=True)  # without a copy, which may be large
            image: Image.Image = opened
            if image.mode.startswith("I;16"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            elif image.mode in ("I", "F"):
                raise NotAnImageError(_NO_RANGE, f"Pillow's mode {image.mode}; save it with 8 bits")
            if image.mode != mode:
                image = image.convert("RGB").convert(mode)
            return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR)).reshape(height, width, channels)
    except (MemoryError, NotAnImageError):
        raise
    except UnidentifiedImageError:
        begin = content[:_SHOWN_BYTES]
        raise NotAnImageError(NO_IMAGE, f"it begins with {begin!r}") from None
    except Exception as error:  # decoders may raise any error on damaged bytes
        text = next(iter(str(error).splitlines()), type(error).__name__)
        kind = _TOO_LARGE if isinstance(error, Image.DecompressionBombError) else _DAMAGED
        raise NotAnImageError(kind, text) from None


def is_image_file(content: bytes) -> bool:
    """Whether bytes begin with the signature and a valid header of one of the formats."""
    if not re.match(SIGNATURES.encode(), content):
        return False
    try:
        with warnings.catch_warnings(action="ignore"), _opened(content):
            return True
    except MemoryError:
        raise
    except Exception as error:  # a header with too many pixels is still a header
        from PIL import Image

        return isinstance(error, Image.DecompressionBombError)


def _opened(content: bytes) -> "ImageFile":
    from PIL import Image

    return Image.open(io.BytesIO(content), formats=_FORMATS)
