import numpy as np
import pyarrow as pa
import pytest
from numpy.testing import assert_array_equal

from sparkdl.data.reading.arrays import decode
from sparkdl.errors import DataError

from ..conftest import IMAGES, VECTORS

PIXELS = [bytes([i, i + 1, i + 2, i + 3]) for i in range(5)]
ROWS = [[float(i), float(i) + 0.5, float(i) - 1] for i in range(5)]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(4)])
def test_images_of_every_binary_type(kind: pa.DataType) -> None:
    images = decode(pa.array(PIXELS, kind), IMAGES)
    assert_array_equal(images, np.array([list(pixels) for pixels in PIXELS], np.uint8).reshape(5, 2, 2, 1))


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float32()), pa.list_(pa.float64()), pa.large_list(pa.float32()), pa.list_(pa.float32(), 3)],
)
def test_vectors_of_every_list_type(kind: pa.DataType) -> None:
    vectors = decode(pa.array(ROWS, kind), VECTORS)
    assert vectors.dtype == np.float32
    assert_array_equal(vectors, np.array(ROWS, np.float32))


@pytest.mark.parametrize(("rows", "kind"), [(PIXELS, pa.binary()), (ROWS, pa.list_(pa.float32()))])
def test_a_slice_is_decoded_from_its_own_start(rows: list[object], kind: pa.DataType) -> None:
    input = IMAGES if kind == pa.binary() else VECTORS
    assert_array_equal(decode(pa.array(rows, kind)[2:4], input), decode(pa.array(rows, kind), input)[2:4])


def test_chunks_are_joined() -> None:
    chunked = pa.chunked_array([pa.array(ROWS[:2]), pa.array(ROWS[2:])])
    assert_array_equal(decode(chunked, VECTORS), np.array(ROWS, np.float32))


def test_no_rows_keep_the_shape() -> None:
    assert decode(pa.array([], pa.binary()), IMAGES).shape == (0, 2, 2, 1)
    assert decode(pa.chunked_array([], pa.list_(pa.float32())), VECTORS).shape == (0, 3)


def test_a_single_chunk_is_viewed_and_not_copied() -> None:
    column = pa.array(ROWS, pa.list_(pa.float32()))
    assert decode(column, VECTORS).__array_interface__["data"][0] == column.values.buffers()[1].address


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([PIXELS[0], None]), "1 null rows"),
        (pa.array([PIXELS[0], b"abc"]), "1 rows do not have the size"),
        (pa.array(["text"]), "must be binary with 4 bytes a row"),
    ],
)
def test_images_that_do_not_fit_are_counted(column: pa.Array, message: str) -> None:
    with pytest.raises(DataError, match=message):
        decode(column, IMAGES)


def test_null_elements_of_a_vector_are_counted() -> None:
    with pytest.raises(DataError, match="1 null elements"):
        decode(pa.array([[1.0, None, 2.0]]), VECTORS)


def test_the_image_struct_of_spark_is_understood() -> None:
    column = pa.array([{"height": 2, "width": 2, "nChannels": 1, "data": pixels} for pixels in PIXELS])
    assert_array_equal(decode(column, IMAGES), decode(pa.array(PIXELS), IMAGES))


def test_an_image_struct_of_another_shape_does_not_fit_though_it_has_as_many_bytes() -> None:
    column = pa.array([{"height": 1, "width": 4, "nChannels": 1, "data": PIXELS[0]}])
    with pytest.raises(DataError, match="1 rows do not have the size"):
        decode(column, IMAGES)
