"""Reads one rank's shard in an epoch: shuffled, in batches, and resumable at any batch."""

import itertools
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from sparkdl.data.dataset import Dataset
from sparkdl.data.query_rows import whole_queries
from sparkdl.data.reading.collating import named_tensors
from sparkdl.data.reading.lengths import Grid
from sparkdl.data.reading.shards import (
    Deal,
    EvenCut,
    Phase,
    Segment,
    Stretch,
    rank_sizes,
    rows_after,
    share,
    without_first,
)
from sparkdl.data.reading.windows import RowBlock, Window, cut_into_batches
from sparkdl.errors import DatasetError
from sparkdl.inputs.tensors import Inputs
from sparkdl.inputs.token_labels import token_labels

__all__ = ["Batch", "Loader", "read_row_group"]

_WINDOW_BYTES = 1 << 27
"""The memory of a shuffling window. Two exist at a time: one is read while the other is used."""
_WINDOW_GROUPS = 2, 8
"""The fewest row groups in a window, so that their rows are mixed, and the most, so that the first batch comes soon."""
_OF_ALL_RANKS = 2**32
"""Used in place of a shard's number for random numbers that are the same on all ranks."""
_DECODERS = 2
"""The number of threads that read and decode; one is often slower than a warm page cache."""


class Batch(NamedTuple):
    """The rows of one step on one rank."""

    inputs: Inputs
    """uint8 of shape (n, height, width, channels) or float32 of shape (n, width); named inputs are a mapping, see
    :func:`~sparkdl.data.reading.collating.named_tensors`."""
    labels: torch.Tensor
    """int64 or float64 of shape (n,), or uint8 of shape (n, classes); see :class:`~sparkdl.data.label_spec.LabelSpec`.

    For ranking, float64 of shape (n, rows of the largest group), padded with -1; the inputs are then those of all rows,
    group after group. For language modelling, the result of :func:`~sparkdl.inputs.token_labels.token_labels`, of shape
    (n, length of the longest block)."""
    global_rows: int
    """The rows of all ranks in this step. The mean over ranks of ``loss * n * size / global_rows`` is the mean over
    rows."""
    weights: torch.Tensor | None = None
    """float64 of shape (n,), with mean 1 over the training split; None if rows have no weights."""
    teacher: torch.Tensor | None = None
    """float16 of shape (n, classes): the logits of a teacher; None without a teacher and for other splits."""


class Loader:
    """The batches of one rank. Runs on a rank; ranks agree on everything without communication.

    Every row of the split is used exactly once per epoch over all ranks, for any ``size``. Shards differ by at most one
    row, so every rank takes the same number of steps. The last batch may be smaller; on a rank whose shard has one row
    less, it may be empty.

    The order is a pure function of (seed, epoch, size): row groups are permuted and assigned to ranks, then rows are
    permuted within a window of several row groups. Sequences are batched with others of similar length in their window,
    with similar lengths on all ranks in each step; their order also depends on ``batch_size``. Without ``shuffle``,
    rows keep the dataset's order. An epoch can be continued at any batch, also by another number of ranks.

    Iterating raises :class:`DatasetError`, with the file's name, if a file is missing or was altered.
    """

    def __init__(
        self,
        dataset: Dataset,
        split: str,
        *,
        batch_size: int,
        rank: int = 0,
        size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        if not 0 <= rank < size:
            raise ValueError(f"rank must be from 0 to {size - 1}, not {rank}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if dataset.card.labels:
            raise DatasetError(f"{dataset.path} is for very many classes; read it with SparseLoader")
        self._groups = dataset.row_groups(split)
        self._dataset = dataset if split == "train" else replace(dataset, answers=None)
        self._batch_size, self._rank, self._size = batch_size, rank, size
        self._seed, self._shuffle = seed % 2**63, shuffle
        self._total = dataset.rows(split)
        card = dataset.card
        of_files = card.in_lists or bool(card.inputs)
        largest = int(self._groups.bytes.max() if of_files else self._groups.rows.max() * card.input.row_bytes)
        least, most = _WINDOW_GROUPS
        self._window_groups = min(max(_WINDOW_BYTES // largest, least), most)

    @property
    def steps(self) -> int:
        """The number of batches per epoch: the same on all ranks and in all epochs."""
        return self.steps_after(())

    def steps_after(self, phases: Sequence[Phase]) -> int:
        """The number of batches that are left of an epoch after these phases."""
        return -(-rank_sizes(self.rows_after(phases), self._size)[0] // self._batch_size)

    def rows_after(self, phases: Sequence[Phase]) -> int:
        """The rows of all ranks that are left of an epoch after these phases."""
        return rows_after(self._total, phases)

    def rows(self, epoch: int) -> int:
        """The rows of this rank in an epoch."""
        return int(self._deal(epoch, self._size).rows[self._rank])

    def epoch(self, number: int, start: int = 0, *, after: Sequence[Phase] = ()) -> Iterator[Batch]:
        """The batches of an epoch from batch ``start`` on; windows before it are not read.

        ``after`` are the parts of the epoch that are already done, by other numbers of ranks or with other batch sizes.
        The remaining rows are then divided again, and batches are counted from there.
        """
        dealt = self._deal(number, after[0].size if after else self._size)
        stretches = share(dealt.rows.tolist(), after, self._size)[self._rank]
        places = self._windows(dealt, without_first(stretches, start * self._batch_size))
        blocks = self._read_windows(number, places, after[0].batch_size if after else self._batch_size)
        left, steps = self.rows_after(after), self.steps_after(after)
        try:
            cut = cut_into_batches(blocks, self._batch_size, self._dataset)
            for step, block in zip(range(start, steps), cut, strict=False):
                yield _batch(block, self._dataset, self._global_rows(step, left))
        finally:
            blocks.close()

    def _deal(self, epoch: int, size: int) -> Deal | EvenCut:
        groups = len(self._groups)
        order = self._random(epoch).permutation(groups) if self._shuffle else np.arange(groups)
        return (Deal if self._dataset.is_even else EvenCut)(self._groups.rows, order, size)

    def _windows(self, dealt: Deal | EvenCut, stretches: Sequence[Stretch]) -> "Iterator[_Place]":
        """The windows that contain these stretches, and which of their shuffled rows belong to them."""
        for shard, start, stop in stretches:
            segments = dealt.shard(shard)
            firsts = np.arange(0, len(segments), self._window_groups)
            rows = np.add.reduceat(segments[:, 2] - segments[:, 1], firsts)
            ends = np.cumsum(rows)
            for index in range(np.searchsorted(ends, start, "right"), np.searchsorted(ends, stop, "left") + 1):
                begin, end = int(ends[index] - rows[index]), int(ends[index])
                window = segments[firsts[index] : firsts[index] + self._window_groups].tolist()
                taken = slice(max(start - begin, 0), min(stop, end) - begin)
                yield _Place(shard, index, begin, [Segment(*segment) for segment in window], taken)

    def _global_rows(self, step: int, total: int) -> int:
        done = step * self._batch_size
        larger, smaller = rank_sizes(total, self._size)
        num_larger = total - smaller * self._size
        share = [min(max(rows - done, 0), self._batch_size) for rows in (larger, smaller)]
        return share[0] * num_larger + share[1] * (self._size - num_larger)

    def _random(self, *keys: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, *keys])

    def _read_windows(self, epoch: int, places: "Iterator[_Place]", batch_size: int) -> Generator[RowBlock, None, None]:
        """The rows of each window in their final order, read one window ahead. ``batch_size`` decides the order."""
        pool = ThreadPoolExecutor(_DECODERS, thread_name_prefix="sparkdl-loader")
        ahead: deque[tuple[Window, slice]] = deque()
        try:
            while True:
                for place in itertools.islice(places, 2 - len(ahead)):
                    random = self._random(epoch, place.shard, place.number) if self._shuffle else None
                    grid = Grid(place.begin, batch_size, self._random(epoch, _OF_ALL_RANKS, place.number))
                    window = Window(self._dataset, self._groups, place.segments, random, pool, grid)
                    ahead.append((window, place.rows))
                if not ahead:
                    return
                window, rows = ahead.popleft()
                yield window.result().take(rows)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def read_row_group(dataset: Dataset, split: str, number: int, *, batch_size: int) -> Iterator[Batch]:
    """The rows of one row group, in the order of its file, in batches. Runs anywhere. Raises :class:`DatasetError`."""
    groups = dataset.row_groups(split)
    rows = int(groups.rows[number])
    with ThreadPoolExecutor(1, thread_name_prefix="sparkdl-loader") as pool:
        segment = Segment(number, 0, rows)
        block = Window(dataset, groups, [segment], None, pool, Grid(0, batch_size, np.random.default_rng(0))).result()
    for start in range(0, rows, batch_size):
        some = block.take(slice(start, start + batch_size))
        yield _batch(some, dataset, some.rows)


def _batch(block: RowBlock, dataset: Dataset, global_rows: int) -> Batch:
    """The rows as tensors: here, batch by batch, sparse rows become dense and sequences are padded."""
    inputs, labels, card = block.inputs, block.labels, dataset.card
    if not isinstance(inputs, np.ndarray | dict):
        ranking, width = card.task == "ranking", dataset.input.shape[0]
        inputs, labels = whole_queries(inputs, labels, width) if ranking else (inputs.toarray(), labels)
    weights, mean = None, card.mean_weight
    if block.weights is not None and mean is not None:
        weights = torch.from_numpy(block.weights / mean)
    tensors = named_tensors(inputs, card.inputs) if isinstance(inputs, dict) else torch.from_numpy(inputs)
    if card.task == "language_modelling":
        return Batch(tensors, token_labels(tensors), global_rows, weights)
    answers = dataset.answers
    teacher = None if block.teacher is None or answers is None else answers.to_tensor(block.teacher)
    return Batch(tensors, torch.from_numpy(labels), global_rows, weights, teacher)


class _Place(NamedTuple):
    """Some rows, after shuffling, of the window with this ``number`` in a shard."""

    shard: int
    number: int
    begin: int
    """Its first row, among those of the shard."""
    segments: Sequence[Segment]
    rows: slice
