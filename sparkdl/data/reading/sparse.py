"""Reads batches of sparse rows for one task: shuffled, epoch by epoch."""

from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sparkdl.data.dataset import Dataset
from sparkdl.data.reading.read import verified_content
from sparkdl.data.sparse_rows import Rows, read_rows
from sparkdl.errors import DatasetError

__all__ = ["SparseBatch", "SparseLoader", "to_batch"]

_WINDOW_BYTES = 1 << 24
"""About the size of one shuffling window's files. Two windows exist at a time: one is read while the other is used. For
a moment, reading needs a window twice, and the file's bytes: some 100 MB in total."""
_WINDOW_GROUPS = 2
"""The fewest row groups in a window, so that rows mix between groups."""


class SparseBatch(NamedTuple):
    """Some rows. Row i has the features from ``offsets[i]`` to ``offsets[i + 1]``; labels likewise."""

    indices: torch.Tensor
    """int64 of shape (number of nonzero features,)."""
    values: torch.Tensor
    """float32 of the same shape."""
    offsets: torch.Tensor
    """int64 of shape (n + 1,), as for ``torch.nn.functional.embedding_bag`` with ``include_last_offset``."""
    labels: torch.Tensor
    """int64: the class indices of all rows; -1 for a label that the training split does not have."""
    label_offsets: torch.Tensor
    """int64 of shape (n + 1,)."""


class SparseLoader:
    """The batches of a sparse dataset. Runs in a task (or anywhere); only a window of row groups is in memory.

    Every row of the split is used exactly once per epoch; the last batch may be smaller. The order is a pure function
    of (seed, epoch): row groups are permuted, then rows within a window of several row groups. Without ``shuffle``,
    rows keep the dataset's order. Iterating raises :class:`DatasetError`, with the file's name, if a file is missing or
    was altered.
    """

    def __init__(self, dataset: Dataset, split: str, *, batch_size: int, seed: int = 0, shuffle: bool = True) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if dataset.input.kind != "sparse":
            raise DatasetError(
                f"{dataset.path} holds dense rows; read it with Loader, or prepare it with `sparse: true`"
            )
        self._groups = dataset.row_groups(split)
        self._batch_size, self._seed, self._shuffle = batch_size, seed % 2**63, shuffle

    @property
    def rows(self) -> int:
        """The number of rows per epoch."""
        return int(self._groups.rows.sum())

    @property
    def steps(self) -> int:
        """The number of batches per epoch."""
        return -(-self.rows // self._batch_size)

    def epoch(self, number: int) -> Iterator[SparseBatch]:
        """The batches of an epoch."""
        rest: list[Rows] = []
        missing = self._batch_size
        windows = self._read_windows(number)
        try:
            for rows, order in windows:
                at = 0
                while len(order) - at >= missing:  # reorder batch by batch: a whole window would need more memory
                    batch = Rows.join([*rest, rows.take(order[at : at + missing])])
                    at += missing
                    rest, missing = [], self._batch_size
                    yield to_batch(batch)
                if at < len(order):
                    rest.append(rows.take(order[at:]))
                    missing -= len(order) - at
            if rest:
                yield to_batch(Rows.join(rest))
        finally:
            windows.close()

    def _windows(self, epoch: int) -> list[list[int]]:
        """The numbers of the row groups in each window."""
        count = len(self._groups)
        order = self._random(epoch).permutation(count) if self._shuffle else np.arange(count)
        windows: list[list[int]] = []
        filled = 0
        for number, size in zip(order.tolist(), self._groups.bytes[order].tolist(), strict=True):
            if not windows or (len(windows[-1]) >= _WINDOW_GROUPS and filled + size > _WINDOW_BYTES):
                windows.append([])
                filled = 0
            windows[-1].append(number)
            filled += size
        return windows

    def _read_windows(self, epoch: int) -> Generator[tuple[Rows, NDArray[np.int64]], None, None]:
        """The rows of each window and their shuffled order, read one window ahead."""
        windows = self._windows(epoch)
        pool = ThreadPoolExecutor(1, thread_name_prefix="sparkdl-loader")
        try:
            ahead = pool.submit(self._read, windows[0], epoch, 0)
            for index in range(len(windows)):
                window = ahead.result()
                if index + 1 < len(windows):
                    ahead = pool.submit(self._read, windows[index + 1], epoch, index + 1)
                yield window
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, groups: Sequence[int], epoch: int, window: int) -> tuple[Rows, NDArray[np.int64]]:
        rows = Rows.join([read_rows(verified_content(self._groups[number])) for number in groups])
        order = self._random(epoch, window).permutation(rows.rows) if self._shuffle else np.arange(rows.rows)
        return rows, order

    def _random(self, *keys: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, *keys])


def to_batch(rows: Rows) -> SparseBatch:
    """Some rows as tensors, copied: memory of Arrow or a window must not be written to."""
    return SparseBatch(
        torch.from_numpy(rows.indices.astype(np.int64)),
        torch.from_numpy(rows.values.copy()),
        torch.from_numpy(rows.offsets),
        torch.from_numpy(rows.labels.copy()),
        torch.from_numpy(rows.label_offsets),
    )
