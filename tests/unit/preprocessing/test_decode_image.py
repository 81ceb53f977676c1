"""Image files of the kinds that people have, and those that are none."""

import io

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from sparkdl.preprocessing.decode_image import NotAnImageError, decode_image

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
ORIENTATION = 0x0112


def saved(image: Image.Image, kind: str, **options: object) -> bytes:
    content = io.BytesIO()
    image.save(content, kind, **options)
    return content.getvalue()


def four_colours() -> Image.Image:
    """Red and green above blue and black, 8 pixels each way: what JPEG keeps apart."""
    pixels = np.zeros((16, 16, 3), np.uint8)
    pixels[:8, :8], pixels[:8, 8:], pixels[8:, :8] = RED, GREEN, BLUE
    return Image.fromarray(pixels)


def corners(content: bytes) -> list[tuple[int, ...]]:
    """The colours of the four corners, each channel as on or off."""
    pixels = decode_image(content, (16, 16, 3))
    return [tuple(np.where(pixels[y, x] > 127, 255, 0).tolist()) for y in (2, 13) for x in (2, 13)]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_stands_as_its_camera_was_held(orientation: int) -> None:
    stored = {  # how the picture has to lie in the file for the orientation to set it right (EXIF 2.32, tag 274)
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    picture = four_colours()
    lying = picture.transpose(stored[orientation]) if orientation in stored else picture
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    content = saved(lying, "JPEG", exif=exif, quality=95, subsampling=0)
    assert corners(content) == [RED, GREEN, BLUE, (0, 0, 0)]


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_of_sixteen_bits_the_upper_eight_count(kind: str) -> None:
    levels = np.array([[0, 255, 256, 4095], [32768, 40000, 65279, 65535]], np.uint16)
    found = decode_image(saved(Image.fromarray(levels), kind), (2, 4, 3))
    assert (found == (levels >> 8)[:, :, None]).all()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
def test_every_way_to_say_a_colour_becomes_rgb(mode: str) -> None:
    kind = {"CMYK": "TIFF", "YCbCr": "JPEG"}.get(mode, "PNG")
    white = decode_image(saved(Image.new("RGB", (8, 8), (255, 255, 255)).convert(mode), kind), (4, 4, 3))
    assert white.shape == (4, 4, 3) and (white == 255).all()


def test_colours_under_full_transparency_are_kept() -> None:
    clear = Image.new("RGBA", (4, 4), (*RED, 0))
    assert (decode_image(saved(clear, "PNG"), (4, 4, 3)) == RED).all()


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "TIFF", "PNG"])
def test_of_several_frames_or_pages_the_first_is_taken(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN)]
    content = saved(frames[0], kind, save_all=True, append_images=frames[1:])
    assert corners(content) == [RED] * 4


def test_no_other_number_of_channels_is_made_up() -> None:
    with pytest.raises(NotAnImageError, match="decoded to 1 or 3 channels, not to 4"):
        decode_image(saved(four_colours(), "PNG"), (4, 4, 4))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr"])
def test_one_channel_is_the_luma_of_the_three(mode: str) -> None:
    kind = {"CMYK": "TIFF", "YCbCr": "JPEG"}.get(mode, "PNG")
    content = saved(four_colours().convert(mode), kind)
    grey, colours = (decode_image(content, (16, 16, channels)) for channels in (1, 3))
    assert grey.shape == (16, 16, 1)
    assert (grey[..., 0] == np.asarray(Image.fromarray(colours).convert("L"))).all()


def test_a_palette_is_looked_up_and_its_transparency_left_out() -> None:
    picture = four_colours().convert("P", palette=Image.Palette.ADAPTIVE)
    for kind in ("PNG", "GIF"):
        content = saved(picture, kind, transparency=picture.getpixel((2, 2)))
        assert corners(content) == [RED, GREEN, BLUE, (0, 0, 0)]


def test_ink_that_adobe_stores_upside_down_is_ink() -> None:
    content = saved(four_colours().convert("CMYK"), "JPEG", quality=95, subsampling=0)
    assert corners(content) == [RED, GREEN, BLUE, (0, 0, 0)]


def test_a_format_that_pillow_hands_to_another_program_is_none() -> None:
    for kind in ("EPS", "PPM"):
        with pytest.raises(NotAnImageError, match="no image"):
            decode_image(saved(four_colours(), kind), (4, 4, 3))


def bomb() -> bytes:
    """A few bytes that say they are 30,000 pixels each way."""
    header = saved(Image.new("L", (1, 1)), "PNG")
    content = io.BytesIO(header[:8])
    content.seek(8)
    PngImagePlugin.putchunk(content, b"IHDR", (30_000).to_bytes(4, "big") * 2 + b"\x08\0\0\0\0")
    content.write(header[33:])
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "kind", "detail"),
    [
        (b"<!DOCTYPE html><html>Not Found</html>", "no image", "it begins with b'<!DOCTYPE html><'"),
        (b"", "no image", "the file is empty"),
        (saved(four_colours(), "PNG")[:60], "an image that cannot be decoded", "runcated"),
        (saved(four_colours(), "JPEG")[:400], "an image that cannot be decoded", "runcated"),
        (bomb(), "an image of too many pixels", "exceeds limit"),
        (saved(Image.new("F", (4, 4)), "TIFF"), "an image without a range", "mode F; save it with 8 bits"),
        (saved(Image.new("I", (4, 4)), "TIFF"), "an image without a range", "mode I; save it with 8 bits"),
    ],
    ids=["html", "empty", "cut png", "cut jpeg", "bomb", "floats", "32 bits"],
)
def test_what_is_no_picture_is_named(content: bytes, kind: str, detail: str) -> None:
    with pytest.raises(NotAnImageError) as raised:
        decode_image(content, (4, 4, 3))
    assert raised.value.args[0] == kind and detail in raised.value.args[1] and "\n" not in raised.value.args[1]
