"""Columns whose images are files, raw pixels, or both."""

import io

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from sparkdl.preprocessing.decode_image import IMAGE_PROBLEMS, decode_image
from sparkdl.preprocessing.encoded_images import decoded_images, in_parts

SHAPE = (6, 5, 3)
RANDOM = np.random.default_rng(0)


def picture(height: int = 9, width: int = 7) -> Image.Image:
    return Image.fromarray(RANDOM.integers(0, 256, (height, width, 3), np.uint8))


def saved(image: Image.Image, kind: str) -> bytes:
    content = io.BytesIO()
    image.save(content, kind)
    return content.getvalue()


FILES = {kind: saved(picture(), kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")}
RAW = RANDOM.integers(0, 256, SHAPE, np.uint8).tobytes()


def test_a_column_of_raw_pixels_comes_back_as_it_is() -> None:
    column = pa.array([None, RAW, bytes(90), b"\xff" * 90], pa.binary())
    found = decoded_images(column, SHAPE)
    assert found.pixels is column and found.refused == {}


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()], ids=str)
def test_files_of_each_format_become_pixels_beside_raw_ones(kind: pa.DataType) -> None:
    column = pa.array([b"before", RAW, *FILES.values(), None, RAW], kind).slice(1)
    pixels, refused = decoded_images(column, SHAPE)
    decoded = [decode_image(content, SHAPE).tobytes() for content in FILES.values()]
    assert pixels.to_pylist() == [RAW, *decoded, None, RAW] and pixels.type == kind and refused == {}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_exactly_as_many_bytes_as_pixels_is_a_file(kind: str) -> None:
    content = FILES[kind]
    shape = (1, len(content), 1)
    pixels, refused = decoded_images(pa.array([content]), shape)
    assert refused == {} and pixels[0].as_py() == decode_image(content, shape).tobytes() != content


@pytest.mark.parametrize(
    "begin", [b"\xff\xd8\xff\xff\xd8\xff", b"BM", b"BM\x5a\0\0\0\0\0\0\0", b"II*\0", b"GIF89a"], ids=repr
)
def test_pixels_that_begin_like_a_file_and_have_no_header_of_one_are_pixels(begin: bytes) -> None:
    content = begin + RAW[len(begin) :]
    assert decoded_images(pa.array([content, RAW]), SHAPE).pixels.to_pylist() == [content, RAW]


def test_what_is_neither_is_refused_and_said_and_the_others_are_decoded() -> None:
    column = pa.array([b"<html>", FILES["PNG"], FILES["PNG"][:90], FILES["JPEG"][:-200], b""])
    pixels, refused = decoded_images(column, SHAPE)
    assert pixels.is_null().to_pylist() == [True, False, True, True, True]
    no_image, damaged = IMAGE_PROBLEMS[0], IMAGE_PROBLEMS[2]
    assert [refused[row][0] for row in sorted(refused)] == [no_image, damaged, damaged, no_image]
    assert refused[0][1] == "6 bytes, not the 90 of 6 x 5 x 3 raw pixels, and it begins with b'<html>'"


def test_rows_are_read_as_many_at_a_time_as_there_is_room_for_their_pixels() -> None:
    batch = pa.RecordBatch.from_pydict({"image": [b""] * 10})
    assert [len(part) for part in in_parts([batch], (1 << 12, 1 << 12, 1))] == [4, 4, 2]
    assert [len(part) for part in in_parts([batch], (1 << 14, 1 << 14, 3))] == [1] * 10
