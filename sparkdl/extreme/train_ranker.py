"""Trains the second stage: rows are decoded to shortlists, from which tasks learn ranges of classes. On the driver.

Tasks write files atomically, with their checksums in their names. The folder's name is a digest of all that determines
the files, so that a job that is started again computes only missing files, and a task that runs twice writes the same
files.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from pyspark import TaskContext
from pyspark.sql import SparkSession
from safetensors.torch import load, save
from tqdm.auto import tqdm

from sparkdl.cluster import count_slots, limited_threads, retained_memory, run_tasks, spark_reason
from sparkdl.data import Dataset
from sparkdl.data.reading.read import verified_content
from sparkdl.data.reading.sparse import to_batch
from sparkdl.data.sparse_rows import Rows, read_rows
from sparkdl.errors import TrainingError
from sparkdl.extreme import expected_cost
from sparkdl.extreme.ensemble import ROWS, Ensemble, write_model_folder
from sparkdl.extreme.ranker import Classifiers, TrainedRanker
from sparkdl.extreme.repetitions import Finished
from sparkdl.extreme.tasks import Pack
from sparkdl.settings import Extreme, LinearRankerOptions
from sparkdl.storage import join, list_folder, read_file, remove, write_file

__all__ = ["train_ranker"]

FORMAT = "squared hinge, 1"
"""The version of the training method, which is a part of the digest."""
Shortlists = NDArray[np.int32]


def train_ranker(
    dataset: Dataset,
    settings: Extreme,
    options: LinearRankerOptions,
    records: Sequence[Finished],
    spark: SparkSession,
) -> TrainedRanker:
    """Train the classifiers of all classes on the shortlists that these repetitions give for the training rows.

    Raises :class:`~sparkdl.errors.TrainingError` if Spark gives up on a task; files of other tasks are kept.
    """
    folder = join(settings.run_dir, f"ranker-{_digest(options, records)[:16]}")
    parts = expected_cost.ranker_parts(dataset.num_classes)
    missing = [number for number in range(parts) if _classifiers(folder, number) is None]
    if missing:
        there = _written(folder, "shortlists")
        groups = [number for number in range(len(dataset.row_groups("train"))) if number not in there]
        slots = count_slots(spark) or 1
        packs = [tuple(groups[first::slots]) for first in range(min(slots, len(groups)))]
        decode = partial(write_shortlists, dataset, settings, options, records, folder)
        _run(decode, packs, spark, name="shortlists of row groups", folder=folder)
        learn = partial(write_part, dataset, settings, options, folder, parts)
        _run(learn, [(number,) for number in missing], spark, name="ranker's part", folder=folder)
    found = [part for number in range(parts) if (part := _classifiers(folder, number)) is not None]
    if len(found) < parts:
        raise TrainingError(f"{parts - len(found)} parts of the ranker are missing in {folder}; start the job again")
    for path in _written(folder, "shortlists").values():
        remove(path)
    return TrainedRanker(Classifiers.join(found), options)


def write_shortlists(
    dataset: Dataset,
    settings: Extreme,
    options: LinearRankerOptions,
    records: Sequence[Finished],
    folder: str,
    groups: Pack,
) -> list[str]:
    """Decode the rows of some row groups, and write a file for each group. Runs in a task."""
    size = min(options.shortlist, dataset.num_classes)
    with _threads_of_task(), TemporaryDirectory() as scratch:
        write_model_folder(Path(scratch, "model"), dataset, settings, records)
        ensemble = Ensemble.open(Path(scratch, "model"))
        for number in groups:
            rows = read_rows(verified_content(dataset.row_groups("train")[number]))
            found = torch.empty(rows.rows, size, dtype=torch.int32)
            for start in range(0, rows.rows, ROWS):
                stop = min(start + ROWS, rows.rows)
                logits = ensemble.logits(to_batch(rows.part(start, stop)))
                found[start:stop] = ensemble.decode(logits, size).classes
            _write(folder, "shortlists", number, {"classes": found})
    return []


def write_part(
    dataset: Dataset, settings: Extreme, options: LinearRankerOptions, folder: str, parts: int, pack: Pack
) -> list[str]:
    """Train the classifiers of some ranges of classes, and write a file for each range. Runs in a task."""
    for number in pack:
        first, last = (dataset.num_classes * each // parts for each in (number, number + 1))
        with _threads_of_task():
            trained = fit_range(dataset, settings, options, partial(_shortlists, folder), first, last)
        _write(folder, "part", number, trained.to_tensors())
    return []


def fit_range(
    dataset: Dataset,
    settings: Extreme,
    options: LinearRankerOptions,
    shortlists: Callable[[int], Shortlists],
    first: int,
    last: int,
) -> Classifiers:
    """Train the classifiers of the classes from ``first`` to before ``last``. Runs in a task.

    ``shortlists`` gives those of a row group's rows, of shape (n, S).
    """
    from sparkdl.extreme.linear import fit_classes

    parts, pairs = [], []
    before = 0
    for rows, named in _rows_to_learn_from(dataset, settings, options, shortlists):
        classes, places, signs = _pairs(rows, named, first, last)
        pairs.append((classes, places + before, signs))
        parts.append(rows)
        before += rows.rows
    rows = Rows.join(parts)
    classes, places, signs = (np.concatenate(each) for each in zip(*pairs, strict=True))
    by_class = np.argsort(classes, kind="stable")
    numbers = np.arange(first, last)
    ends = np.searchsorted(classes[by_class], np.arange(first, last + 1))
    seeds = ((numbers + settings.seed) % 2**32).astype(np.uint32)
    found = fit_classes(
        rows.indices,
        rows.values,
        rows.offsets,
        dataset.input.shape[0],
        places[by_class],
        signs[by_class],
        ends,
        seeds,
        options.cost,
        options.smallest_weight,
    )
    return Classifiers(*found)


def _rows_to_learn_from(
    dataset: Dataset, settings: Extreme, options: LinearRankerOptions, shortlists: Callable[[int], Shortlists]
) -> Iterator[tuple[Rows, Shortlists]]:
    """The rows of each row group, and the classes, of shape (n, S), for which each row is a negative."""
    for number, group in enumerate(dataset.row_groups("train")):
        rows = read_rows(verified_content(group))
        random = np.random.default_rng([settings.seed % 2**63, number])
        drawn = random.integers(dataset.num_classes, size=(rows.rows, options.random_negatives), dtype=np.int32)
        yield rows, np.concatenate([shortlists(number), drawn], axis=1)
    for group in dataset.row_groups(options.label_texts) if options.label_texts else ():
        rows = read_rows(verified_content(group))
        yield rows, np.empty((rows.rows, 0), np.int32)  # a label's text is no negative for other classes


def _pairs(
    rows: Rows, named: Shortlists, first: int, last: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int8]]:
    """(class, row, sign) for classes in a range: sign 1 for a row's own classes, -1 for others in ``named``."""
    row_of = np.repeat(np.arange(rows.rows), np.diff(rows.label_offsets))
    own = _keys(row_of, rows.labels, first, last)
    others = _keys(np.repeat(np.arange(rows.rows), named.shape[1]), named.ravel(), first, last)
    others = np.setdiff1d(others, own, assume_unique=True)
    places, classes = np.divmod(np.concatenate([own, others]), last - first)
    signs = np.repeat(np.array([1, -1], np.int8), [len(own), len(others)])
    return classes + first, places, signs


def _keys(
    rows: NDArray[np.int64], classes: NDArray[np.int32] | NDArray[np.int64], first: int, last: int
) -> NDArray[np.int64]:
    """A distinct number for each pair whose class is in the range."""
    inside = (first <= classes) & (classes < last)
    return np.unique(rows[inside] * (last - first) + (classes[inside] - first))


def _run(
    work: Callable[[Pack], list[str]], packs: Sequence[Pack], spark: SparkSession, *, name: str, folder: str
) -> None:
    """Run packs of work in tasks. Raises :class:`~sparkdl.errors.TrainingError`."""
    lost: dict[Pack, str] = {}
    bar = tqdm(total=len(packs), desc=name, disable=None)
    with bar, closing(run_tasks(work, packs, spark, name=name)) as ended:
        for pack, found in ended:
            bar.update()
            if isinstance(found, Exception):
                lost[pack] = spark_reason(found)
    if lost:
        numbers = ", ".join(map(str, sorted(number for pack in lost for number in pack)))
        raise TrainingError(
            f"Spark gave up on the {name} {numbers}; the finished ones are kept in {folder}. Start the job again to"
            f" compute only the missing ones. The first error:\n\n{next(iter(lost.values()))}"
        )


def _digest(options: LinearRankerOptions, records: Sequence[Finished]) -> str:
    """The digest of what determines the classifiers' files; the score that combines them does not."""
    weights = [(record.repetition, record.made_of, record.sha256) for record in records]
    decisive = [
        FORMAT,
        expected_cost.CLASSES_PER_TASK,
        options.model_dump(exclude={"candidates", "ensemble_weight"}),
        weights,
    ]
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()


def _classifiers(folder: str, part: int) -> Classifiers | None:
    """The classifiers of one part; None if its file is missing or altered."""
    path = _written(folder, "part").get(part)
    content = read_file(path) if path else b""
    return Classifiers.from_tensors(load(content)) if path and _is_whole(path, content) else None


def _shortlists(folder: str, group: int) -> Shortlists:
    path = _written(folder, "shortlists")[group]
    content = read_file(path)
    if not _is_whole(path, content):
        raise TrainingError(f"{path} was altered after it was written: remove it, and start the job again")
    found: Shortlists = load(content)["classes"].numpy()
    return found


def _write(folder: str, kind: str, number: int, tensors: dict[str, torch.Tensor]) -> None:
    content = save(tensors)
    write_file(join(folder, f"{kind}-{number:06d}-{hashlib.sha256(content).hexdigest()}.safetensors"), content)


def _written(folder: str, kind: str) -> dict[int, str]:
    """The files of a kind, by their numbers."""
    names = [entry.name for entry in list_folder(folder)]
    matches = (re.fullmatch(rf"{kind}-(\d{{6}})-[0-9a-f]{{64}}\.safetensors", name) for name in names)
    return {int(match[1]): join(folder, match[0]) for match in matches if match}


def _is_whole(path: str, content: bytes) -> bool:
    return path.endswith(f"-{hashlib.sha256(content).hexdigest()}.safetensors")


@contextmanager
def _threads_of_task() -> Iterator[None]:
    """Use as many threads as Spark has given to the task."""
    context = TaskContext.get()
    with limited_threads(context.cpus() if context else 1), retained_memory():
        yield
