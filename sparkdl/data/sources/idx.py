"""Images and labels in the IDX format of MNIST (http://yann.lecun.com/exdb/mnist/), plain or gzipped."""

import gzip
import math
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from sparkdl.errors import DataError
from sparkdl.settings import Source
from sparkdl.storage import join, list_folder, open_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_idx"]

_SPLITS = {"train": "train", "t10k": "test"}
"""The prefixes of file names, and their splits."""
_UNSIGNED_BYTE = 0x08
"""The only supported type of elements."""
_BATCH_ROWS = 1024
_GZIP_MAGIC = b"\x1f\x8b"


class _Pair(NamedTuple):
    split: str
    images: str
    labels: str


def read_idx(source: Source, spark: "SparkSession") -> "tuple[DataFrame, tuple[int, ...]]":
    """The rows of a folder of IDX files, and the (height, width, channels) of their images. Runs on the driver.

    A Spark task reads each pair of files, as a stream. Raises :class:`DataError` if the folder has no pair, or a file
    is not in this format.
    """
    pairs = _find_pairs(str(source.path))
    shapes = {pair.images: _image_shape(pair.images) for pair in pairs}
    if len(set(shapes.values())) > 1:
        raise DataError(f"the images of {source.path} have different sizes: {shapes}; prepare each size separately")

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for index in batch.column(0).to_pylist():
                yield from _read_pair(pairs[index])

    rows = spark.range(len(pairs), numPartitions=len(pairs)).mapInArrow(read, "image binary, label int, split string")
    return rows, next(iter(shapes.values()))


def _find_pairs(folder: str) -> list[_Pair]:
    names = [entry.name for entry in list_folder(folder)]
    pairs = []
    for prefix, split in _SPLITS.items():
        images, labels = (_alike(folder, names, f"{prefix}-{what}") for what in ("images", "labels"))
        if images and labels:
            pairs.append(_Pair(split, join(folder, images[0]), join(folder, labels[0])))
        elif images or labels:
            raise DataError(f"{folder} has {(images or labels)[0]} without its {'labels' if images else 'images'}")
    if not pairs:
        raise DataError(f"{folder} has no IDX files; `idx` expects train-images-idx3-ubyte.gz, train-labels-... etc.")
    return pairs


def _alike(folder: str, names: list[str], begin: str) -> list[str]:
    """The files with this prefix: the plain file and the gzipped one."""
    found = [name for name in names if name.startswith(begin)]
    if len({name.removesuffix(".gz") for name in found}) > 1:
        raise DataError(f"{folder} has {', '.join(found)}, but `idx` needs one of them for a split; remove the others")
    return found


def _image_shape(path: str) -> tuple[int, ...]:
    with _open(path) as stream:
        shape = _read_header(stream, path)[1:]
    if len(shape) not in (2, 3):
        raise DataError(f"{path} holds arrays of {len(shape)} dimensions, not images")
    return shape if len(shape) == 3 else (*shape, 1)


def _read_pair(pair: _Pair) -> Iterator[pa.RecordBatch]:
    with _open(pair.images) as images, _open(pair.labels) as labels:
        count, *shape = _read_header(images, pair.images)
        (num_labels,) = _read_header(labels, pair.labels)
        if count != num_labels:
            raise DataError(f"{pair.images} has {count} images, {pair.labels} {num_labels} labels; they must match")
        width = math.prod(shape)
        for start in range(0, count, _BATCH_ROWS):
            rows = min(_BATCH_ROWS, count - start)
            pixels = _read_exactly(images, rows * width, pair.images)
            classes = np.frombuffer(_read_exactly(labels, rows, pair.labels), np.uint8)
            offsets = pa.py_buffer(np.arange(0, (rows + 1) * width, width, dtype=np.int32))
            yield pa.RecordBatch.from_arrays(
                [
                    pa.Array.from_buffers(pa.binary(), rows, [None, offsets, pa.py_buffer(pixels)]),
                    pa.array(classes.astype(np.int32)),
                    pa.array([pair.split] * rows),
                ],
                names=["image", "label", "split"],
            )
        _expect_end(images, pair.images)
        _expect_end(labels, pair.labels)


def _open(path: str) -> Any:
    stream = open_file(path)
    magic = stream.read(len(_GZIP_MAGIC))
    stream.seek(0)
    return gzip.GzipFile(fileobj=stream) if magic == _GZIP_MAGIC else stream


def _read_header(stream: BinaryIO, path: str) -> tuple[int, ...]:
    """The sizes of the array's dimensions; the first is the number of items."""
    zero, kind, dimensions = struct.unpack(">HBB", _read_exactly(stream, 4, path))
    if zero or kind != _UNSIGNED_BYTE or not dimensions:
        raise DataError(f"{path} is not an IDX file of unsigned bytes")
    return struct.unpack(f">{dimensions}I", _read_exactly(stream, 4 * dimensions, path))


def _expect_end(stream: BinaryIO, path: str) -> None:
    """Check that the stream ends here; only at the end does gzip compare its checksum."""
    try:
        more = stream.read(1)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} was altered: {error}; download it again") from None
    if more:
        raise DataError(f"{path} is longer than its header says; download it again")


def _read_exactly(stream: BinaryIO, count: int, path: str) -> bytes:
    try:
        content = stream.read(count)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} cannot be unpacked: {error}; download it again") from None
    if len(content) != count:
        raise DataError(f"{path} ends too early; download it again")
    return content
