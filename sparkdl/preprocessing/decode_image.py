"""The bytes of an image file become pixels of one size. Runs in tasks and in servers."""

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
"""How many channels a file is decoded to, with Pillow's names of such pixels."""
SIGNATURES = r"(?s)\A(?:\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|BM.{4}\x00{4}|RIFF.{4}WEBP|II[*+]\x00|MM\x00[*+])"
"""How files of JPEG, PNG, GIF, BMP, WebP and TIFF begin: one expression for Python, Arrow and Java."""
NO_IMAGE = "no image"
_TOO_LARGE = "an image of too many pixels"
_DAMAGED = "an image that cannot be decoded"
_NO_RANGE = "an image without a range"
_OTHER_CHANNELS = "an image of other channels"
IMAGE_PROBLEMS = (NO_IMAGE, _TOO_LARGE, _DAMAGED, _NO_RANGE, _OTHER_CHANNELS)
"""All that can be wrong with the bytes of a file, for counting."""
_FORMATS = "BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP"
"""Pillow knows more, among them formats for which it starts other programs."""
_SHOWN_BYTES = 16


class NotAnImageError(Exception):
    """Bytes that are no picture: its arguments are which of :data:`IMAGE_PROBLEMS` it is, and what exactly."""


def decode_image(content: bytes, shape: Sequence[int]) -> NDArray[np.uint8]:
    """The picture as array of ``shape`` (height, width, channels), as a viewer shows it, resized bilinearly.

    It is turned as its EXIF orientation says (tag 274), and of several frames or pages the first. Of sixteen bits the
    upper eight count, as where Pillow reads sixteen-bit colours; transparency is left out. Of three channels, these are
    red, green and blue; one channel is their luma (ITU-R 601-2). Raises :class:`NotAnImageError` for what cannot be
    decoded, for more pixels than Pillow takes for safe (178,956,970), for numbers of 32 bits, as no file says which
    one is white, and where ``shape`` has neither one nor three channels.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    height, width, channels = shape
    mode = CHANNELS.get(channels)
    if not content:
        raise NotAnImageError(NO_IMAGE, "the file is empty")
    try:
        # Of strange metadata, Pillow warns for each file, in the logs of executors.
        with warnings.catch_warnings(action="ignore"), _opened(content) as opened:
            if mode is None:
                raise NotAnImageError(_OTHER_CHANNELS, f"files are decoded to 1 or 3 channels, not to {channels}")
            opened.load()
            ImageOps.exif_transpose(opened, in_place=True)  # without a copy of what may be large
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
    except Exception as error:  # decoders raise whatever strange bytes lead them to
        text = next(iter(str(error).splitlines()), type(error).__name__)
        kind = _TOO_LARGE if isinstance(error, Image.DecompressionBombError) else _DAMAGED
        raise NotAnImageError(kind, text) from None


def is_image_file(content: bytes) -> bool:
    """Whether bytes begin as an image file does: with the signature of one of the formats, and a header that fits."""
    if not re.match(SIGNATURES.encode(), content):
        return False
    try:
        with warnings.catch_warnings(action="ignore"), _opened(content):
            return True
    except MemoryError:
        raise
    except Exception as error:  # a header that says too much is one all the same
        from PIL import Image

        return isinstance(error, Image.DecompressionBombError)


def _opened(content: bytes) -> "ImageFile":
    from PIL import Image

    return Image.open(io.BytesIO(content), formats=_FORMATS)
