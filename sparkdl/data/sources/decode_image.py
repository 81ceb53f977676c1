"""The bytes of an image file become RGB of one size. Runs in tasks."""

import io
import warnings

import numpy as np

__all__ = ["NotAnImageError", "decode_image"]

_SHOWN_BYTES = 16


class NotAnImageError(Exception):
    """Bytes that are no picture: its arguments are what is wrong, for counting, and what exactly."""


def decode_image(content: bytes, height: int, width: int) -> "np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]":
    """The picture as array (height, width, 3), as a viewer shows it, resized bilinearly.

    It is turned as its EXIF orientation says (tag 274), and of several frames or pages the first. Of sixteen bits the
    upper eight count, as where Pillow reads sixteen-bit colours; transparency is left out. Raises
    :class:`NotAnImageError` for what cannot be decoded, and for numbers of 32 bits: no file says which one is white.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not content:
        raise NotAnImageError("no image", "the file is empty")
    try:
        # Of strange metadata, Pillow warns for each file, in the logs of executors.
        with warnings.catch_warnings(action="ignore"), Image.open(io.BytesIO(content)) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode.startswith("I;16"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            elif image.mode in ("I", "F"):
                raise NotAnImageError("an image without a range", f"Pillow's mode {image.mode}; save it with 8 bits")
            return np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BILINEAR))
    except (MemoryError, NotAnImageError):
        raise
    except UnidentifiedImageError:
        begin = content[:_SHOWN_BYTES]
        raise NotAnImageError("no image", f"it begins with {begin!r}") from None
    except Exception as error:  # decoders raise whatever strange bytes lead them to
        text = next(iter(str(error).splitlines()), type(error).__name__)
        raise NotAnImageError("an image that cannot be decoded", text) from None
