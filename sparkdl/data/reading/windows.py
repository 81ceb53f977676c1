"""A window of the rows that a rank reads: threads read it, it is shuffled as a whole, and cut into batches."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkdl.data.dataset import Dataset
from sparkdl.data.in_place.reading import read_in_place
from sparkdl.data.named_files import no_rows, read_named_rows
from sparkdl.data.query_rows import LARGEST_QUERY
from sparkdl.data.ragged import Ragged
from sparkdl.data.reading.lengths import Grid, by_length, total_lengths
from sparkdl.data.reading.read import read_segment, read_sparse_segment, verified_content
from sparkdl.data.reading.shards import Segment
from sparkdl.data.row_groups import ForeignRowGroup, RowGroup

__all__ = ["RowBlock", "Window", "cut_into_batches"]


class RowBlock(NamedTuple):
    """Some rows in their final order."""

    inputs: Any
    """An array of shape (n, *input.shape); for sparse rows, a ``scipy.sparse.csr_array`` of that shape; for named
    inputs, arrays and :class:`~sparkdl.data.ragged.Ragged` rows by name."""
    labels: Any
    """An array of shape (n, *label.shape). For ranking, labels and inputs are the arguments of
    :func:`~sparkdl.data.query_rows.whole_queries`."""
    weights: NDArray[np.float64] | None
    """Shape (n,), as in the files."""
    teacher: NDArray[Any] | None = None
    """Shape (n, ...); see :class:`~sparkdl.data.teacher_answers.TeacherAnswers`."""

    @classmethod
    def make(cls, dataset: Dataset, rows: int) -> "RowBlock":
        """Memory for dense rows of a dataset; empty for named inputs."""
        label = dataset.label
        weights = None if dataset.card.mean_weight is None else np.empty(rows)
        labels = np.empty((rows, *label.shape), label.dtype)
        teacher = dataset.answers.room(rows) if dataset.answers else None
        if dataset.card.inputs:
            return cls({name: no_rows(spec) for name, spec in dataset.card.inputs.items()}, labels, weights, teacher)
        return cls(np.empty((rows, *dataset.input.shape), dataset.input.dtype), labels, weights, teacher)

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self.labels.shape[0])

    def take(self, rows: slice | NDArray[np.int64]) -> "RowBlock":
        """Some of the rows. For a slice, they are not copied."""
        return RowBlock(
            _taken(self.inputs, rows),
            self.labels[rows],
            None if self.weights is None else self.weights[rows],
            None if self.teacher is None else self.teacher[rows],
        )

    @staticmethod
    def join(blocks: "Sequence[RowBlock]") -> "RowBlock":
        """The rows of all blocks, in order."""
        weights = [block.weights for block in blocks if block.weights is not None]
        teacher = [block.teacher for block in blocks if block.teacher is not None]
        return RowBlock(
            _below_one_another([block.inputs for block in blocks]),
            _below_one_another([block.labels for block in blocks]),
            np.concatenate(weights) if weights else None,
            np.concatenate(teacher) if teacher else None,
        )


class Window:
    """The rows of some segments, which threads read.

    Dense rows are copied directly to their positions after shuffling, in preallocated memory. Sparse rows, whose size
    is not known beforehand, and named inputs are reordered when all have been read.
    """

    def __init__(
        self,
        dataset: Dataset,
        groups: Sequence[RowGroup],
        segments: Sequence[Segment],
        random: np.random.Generator | None,
        pool: ThreadPoolExecutor,
        grid: Grid,
    ) -> None:
        """``random`` shuffles the rows; with None, rows keep their order, and are not batched by length."""
        self._grid = grid if random is not None else None
        rows = sum(segment.rows for segment in segments)
        self._places = np.arange(rows) if random is None else random.permutation(rows)
        self._futures: list[Future[Any]] = []
        put = not (dataset.card.in_lists or dataset.card.inputs)
        self._block = RowBlock.make(dataset, rows) if put else None
        begin = 0
        for segment in segments:
            end = begin + segment.rows
            if self._block is None:
                read = _named_block if dataset.card.inputs else _sparse_block
                task: Future[Any] = pool.submit(read, dataset, groups[segment.group], segment)
            else:
                group, places = groups[segment.group], self._places[begin:end]
                inputs, labels, weights, teacher = self._block
                if isinstance(group, ForeignRowGroup):
                    task = pool.submit(read_in_place, group, segment, dataset, inputs, labels, weights, places)
                else:
                    task = pool.submit(read_segment, group, segment, dataset.card, inputs, labels, weights, places)
                if teacher is not None:
                    self._futures.append(pool.submit(_put_answers, dataset, segment, teacher, places))
            self._futures.append(task)
            begin = end

    def result(self) -> RowBlock:
        """Wait for the threads, and return the rows."""
        read = [future.result() for future in self._futures]
        if self._block:
            return self._block
        order = np.argsort(self._places)
        joined = RowBlock.join(read)
        lengths = total_lengths(joined.inputs) if isinstance(joined.inputs, dict) else None
        if lengths is not None and self._grid is not None:
            order = order[by_length(lengths[order], self._grid)]
        return joined.take(order)


def cut_into_batches(blocks: Iterator[RowBlock], batch_size: int, dataset: Dataset) -> Iterator[RowBlock]:
    """Cut blocks of rows into batches; a batch may span two blocks. After the last row, batches are empty."""
    empty = rest = RowBlock.make(dataset, 0)
    for block in blocks:
        start = 0
        if rest.rows:
            start = min(batch_size - rest.rows, block.rows)
            rest = RowBlock.join([rest, block.take(slice(start))])
            if rest.rows < batch_size:
                continue
            yield rest
        stop = start + (block.rows - start) // batch_size * batch_size
        for begin in range(start, stop, batch_size):
            yield block.take(slice(begin, begin + batch_size))
        rest = block.take(slice(stop, None))
    if rest.rows:
        yield rest
    while True:
        yield empty


def _sparse_block(dataset: Dataset, group: RowGroup, segment: Segment) -> RowBlock:
    """The rows of a segment in the order of the file."""
    from scipy import sparse  # imported here, because dense rows do not need it

    rows, weights = read_sparse_segment(group, segment, dataset.card)
    width, labels = dataset.input.shape[0], rows.labels.view(dataset.label.dtype)
    if dataset.card.task == "ranking":
        width *= LARGEST_QUERY
        places = np.arange(len(labels)) - np.repeat(rows.label_offsets[:-1], np.diff(rows.label_offsets))
        labels = sparse.csr_array((labels, places, rows.label_offsets), shape=(rows.rows, LARGEST_QUERY))
    inputs = sparse.csr_array((rows.values, rows.indices, rows.offsets), shape=(rows.rows, width))
    return RowBlock(inputs, labels, weights, _answers(dataset, segment))


def _named_block(dataset: Dataset, group: RowGroup, segment: Segment) -> RowBlock:
    """The rows of a segment in the order of the file."""
    card = dataset.card
    content = verified_content(group)
    rows = slice(segment.start, segment.stop)
    weighted = card.mean_weight is not None
    found = read_named_rows(content, card.inputs, card.label, weighted=weighted, rows=rows)
    return RowBlock(*found, _answers(dataset, segment))


def _answers(dataset: Dataset, segment: Segment) -> NDArray[Any] | None:
    """The logits of a teacher for the rows of a segment."""
    return dataset.answers.read(segment.group, slice(segment.start, segment.stop)) if dataset.answers else None


def _put_answers(dataset: Dataset, segment: Segment, teacher: NDArray[Any], places: NDArray[np.int64]) -> None:
    teacher[places] = _answers(dataset, segment)


def _taken(inputs: Any, rows: slice | NDArray[np.int64]) -> Any:
    if isinstance(inputs, dict):
        return {name: _taken(each, rows) for name, each in inputs.items()}
    return inputs.take(rows) if isinstance(inputs, Ragged) else inputs[rows]


def _below_one_another(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: _below_one_another([part[name] for part in parts]) for name in parts[0]}
    if isinstance(parts[0], Ragged):
        return Ragged.join(parts)
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    from scipy import sparse

    return sparse.vstack(parts, format="csr")
