"""Reads folders of image files with one sub-folder per class: Spark tasks list, decode and resize them.

Spark's own listing is not used, because it skips names that begin with an underscore or a dot, as some cameras write
them, and takes brackets in a path for a pattern.
"""

import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from sparkdl.data.bad_rows import PROBLEM, PROBLEM_TYPE
from sparkdl.errors import ConfigError, DataError
from sparkdl.masking import without_credentials
from sparkdl.preprocessing.decode_image import NotAnImageError, decode_image
from sparkdl.sessions import default_parallelism
from sparkdl.settings import Source
from sparkdl.storage import expand, join, list_files, list_folder, local_path, read_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_images"]

_CHANNELS = 3
_BATCH_BYTES = 1 << 26
"""The bytes of pixels that a task passes to Spark at a time."""
_TASK_FILES = 1024
"""About the number of files that a task decodes: seconds of work."""
_IMAGE_NAME = re.compile(r"(?i)(?!\._).*\.(jpe?g|png|bmp|gif|webp|tiff?)")
"""The names of image files. Names that begin with ``._`` are macOS's metadata files on other file systems."""
_SHOWN_FILES = 5
"""The most skipped files that a warning names; all are counted."""
_BAD = pa.struct([(name, pa.string() if kind == "string" else pa.int64()) for name, kind in PROBLEM_TYPE.items()])
_PROBLEM = f"{PROBLEM} struct<{', '.join(f'{name}: {kind}' for name, kind in PROBLEM_TYPE.items())}>"

_log = logging.getLogger(__name__)


class _Folder(NamedTuple):
    """The files of a class."""

    path: str
    split: str | None
    root: str
    """The path that the user has set."""
    passed_over: bool
    """Whether it is hidden, so that its files are skipped."""


class _Listed(NamedTuple):
    """The files below a folder."""

    images: list[str]
    others: list[str]
    """Files that are skipped."""
    deep: list[str]
    """One of the skipped images from each deeper folder."""


def read_images(source: Source, spark: "SparkSession") -> "tuple[DataFrame, tuple[int, ...]]":
    """The images of a folder as RGB of one size, and their (height, width, channels). Runs on the driver.

    Spark tasks list, decode and resize (:func:`~sparkdl.preprocessing.decode_image.decode_image`). A folder without
    sub-folders is a single class. A warning counts the files that are skipped: those without an image's suffix, in
    hidden folders (``.ipynb_checkpoints``), beside the sub-folders, or in deeper folders. If a file cannot be decoded,
    its image is null, and the column :data:`~sparkdl.data.bad_rows.PROBLEM` has the reason. Raises
    :class:`ConfigError` if the options lack ``height`` or ``width``, and :class:`DataError` if there is no image.
    """
    try:
        height, width = (int(source.options[side]) for side in ("height", "width"))
    except KeyError as missing:
        raise ConfigError(
            f"source.options needs {missing} for images, in pixels; all are resized to one size"
        ) from None
    paths = source.path if isinstance(source.path, dict) else {None: str(source.path)}
    folders, beside = [], list[str]()
    for split, path in paths.items():
        roots = expand(str(local_path(path) or path))  # absolute, because tasks have another working directory
        if not roots:
            raise DataError(f"there is no folder {path}; `images` expects one with a sub-folder for each class")
        for root in roots:
            found, files = _class_folders(root, split)
            folders += found
            beside += files
    slots = default_parallelism(spark)
    listing = spark.range(len(folders), numPartitions=min(len(folders), 4 * slots))
    images = _count(listing, folders, beside)
    rows = (
        listing.mapInArrow(partial(_list_images, folders), "path string, label string, split string")
        .repartition(max(slots, math.ceil(images / _TASK_FILES)))
        .mapInArrow(
            partial(_decode, height, width), f"image binary, label string, path string, split string, {_PROBLEM}"
        )
    )
    return rows if isinstance(source.path, dict) else rows.drop("split"), (height, width, _CHANNELS)


def _class_folders(root: str, split: str | None) -> tuple[list[_Folder], list[str]]:
    """The folders of a root's classes, and the files beside them."""
    entries, local = list_folder(root), local_path(root)
    names = [entry.name for entry in entries if entry.is_folder or (local and (local / entry.name).is_dir())]  # links
    if not names:
        return [_Folder(root, split, root, passed_over=False)], []
    folders = [_Folder(join(root, name), split, root, passed_over=name.startswith(".")) for name in names]
    return folders, [join(root, entry.name) for entry in entries if entry.name not in names]


def _count(listing: "DataFrame", folders: Sequence[_Folder], beside: list[str]) -> int:
    """The number of images. Logs a warning about skipped files. Raises :class:`DataError` if there is no image."""
    columns = "images bigint, others bigint, first array<string>, deep array<string>"
    counts = listing.mapInArrow(partial(_count_files, folders), columns).collect()
    images: int = sum(row.images for row in counts)
    others = sum(row.others for row in counts) + len(beside)
    roots = ", ".join(dict.fromkeys(without_credentials(folder.root) for folder in folders))
    if not images:
        deep = sorted((path for row in counts for path in row.deep), key=lambda path: (path.count("/"), path))
        if deep:
            parents = sorted({path.rsplit("/", 2)[0] for path in deep if path.count("/") == deep[0].count("/")})
            choice = f"`source.path: {parents[0]}`"
            if len(parents) > 1:
                each = ", ".join(f"{path.rpartition('/')[2]}: {path}" for path in parents)
                choice += f", or for splits `source.path: {{{each}}}`"
            raise DataError(
                f"the images of {roots} are deeper than in its sub-folders, such as {deep[0]}; set the parent folder of"
                f" the classes: {choice}"
            )
        raise DataError(
            f"there is no image in {roots} ({others:,} other files); `images` expects a sub-folder for each class, with"
            " files .jpg, .jpeg, .png, .bmp, .gif, .webp, .tif or .tiff"
        )
    if others:
        first = sorted([*beside, *(path for row in counts for path in row.first)])[:_SHOWN_FILES]
        _log.warning(
            "%s: %d files were skipped, because their names are not those of images, or they are not directly in the"
            " folder of a class: %s%s",
            *(roots, others, ", ".join(map(without_credentials, first)), ", ..." if others > len(first) else ""),
        )
    return images


def _count_files(folders: Sequence[_Folder], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        listed = [_list(folders[index]) for index in batch.column(0).to_pylist()]
        for folder in listed:
            counts = {
                "images": [len(folder.images)],
                "others": [len(folder.others)],
                "first": pa.array([folder.others[:_SHOWN_FILES]], pa.list_(pa.string())),
                "deep": pa.array([folder.deep], pa.list_(pa.string())),
            }
            yield pa.RecordBatch.from_pydict(counts)


def _list_images(folders: Sequence[_Folder], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for index in batch.column(0).to_pylist():
            folder, images = folders[index], _list(folders[index]).images
            label = folder.path.rstrip("/").rpartition("/")[2]
            columns = {"path": images, "label": [label] * len(images), "split": [folder.split] * len(images)}
            yield pa.RecordBatch.from_pydict({name: pa.array(part, pa.string()) for name, part in columns.items()})


def _list(folder: _Folder) -> _Listed:
    """All files below a folder. Runs in a task."""
    images, others, deep = list[str](), list[str](), dict[str, str]()
    for name in list_files(folder.path):
        below, _, file = name.rpartition("/")
        path, hidden = join(folder.path, name), folder.passed_over or f"/{below}".count("/.")
        is_image = not hidden and _IMAGE_NAME.fullmatch(file)
        (images if is_image and not below else others).append(path)
        if is_image and below:
            deep.setdefault(below, path)
    return _Listed(images, others, list(deep.values()))


def _decode(height: int, width: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = max(_BATCH_BYTES // (height * width * _CHANNELS), 1)
    for batch in batches:
        for start in range(0, len(batch), rows):
            paths, labels, splits = batch.slice(start, rows).columns
            found = [_pixels(path, height, width) for path in paths.to_pylist()]
            pixels = pa.array([image for image, _ in found], pa.binary())
            problems = pa.array([problem for _, problem in found], _BAD)
            names = ["image", "label", "path", "split", PROBLEM]
            yield pa.RecordBatch.from_arrays([pixels, labels, paths, splits, problems], names=names)


def _pixels(path: str, height: int, width: int) -> tuple[bytes | None, dict[str, Any] | None]:
    """The image of a file, or what is wrong with it."""
    try:
        return decode_image(read_file(path), (height, width, _CHANNELS)).tobytes(), None
    except NotAnImageError as error:
        kind, detail = error.args
    except (FileNotFoundError, PermissionError) as error:
        kind, detail = "cannot be read", str(error.strerror or error)
    return None, {"kind": kind, "file": path, "line": None, "detail": detail}
