"""From the bucket scores of R repetitions to the k best of K classes, exactly or among likely candidates.

Both ways hold at most ``block_bytes`` of scores at once: rows and classes are taken in blocks. They run wherever the
logits are, on a CPU or a GPU, in a task or on the driver.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy.typing as npt
import torch
from torch.nn import functional

from sparkdl.errors import ConfigError
from sparkdl.extreme.blocks import GROUP, ClassBlock, ClassBlocks
from sparkdl.extreme.estimators import ADDITIVE, Activation, Estimator, bucket_values, class_scores, prior_weight
from sparkdl.extreme.hashing import BucketHash

__all__ = ["Decoder", "TopK"]

ROWS = {"cpu": 32, "cuda": 1024}
"""Rows decoded together. On a CPU the values of their buckets should fit into a core's cache (R B x 32 floats are 1 MB
for R = 16, B = 512), and 32 floats fill the registers of a vectorised sum."""
CANDIDATE_ROWS = {"cpu": 64, "cuda": 4096}
"""Rows whose candidates are found together, at most; on a CPU, more would push the marks out of the cache."""
MARKED_REPETITIONS = 15
"""Candidates come from this many repetitions at most, one bit of an int16 for each; all repetitions score them."""
CHANCE_CANDIDATES = 64
"""About how many classes per row may become candidates by chance; decides how many repetitions must agree on one."""


class TopK(NamedTuple):
    """The best classes of each row, best first."""

    classes: torch.Tensor
    """int64 of shape (n, k)."""
    scores: torch.Tensor
    """float32 of shape (n, k): what the estimator says; logarithms for ``mean_log_probability``."""


class Decoder:
    """Turns bucket logits into classes. Cheap to make; tables are computed at first use.

    ``counts`` are the training frequencies of the classes: with them the decoder is prior-aware (see
    :mod:`sparkdl.extreme.estimators`), without them it is published MACH. ``prior`` replaces the weight that
    :func:`~sparkdl.extreme.estimators.prior_weight` chooses. Raises :class:`ConfigError` for no hashes, hashes of
    different widths, fewer than two buckets, or counts of another number of classes.
    """

    def __init__(
        self,
        hashes: Sequence[BucketHash],
        num_classes: int,
        *,
        estimator: Estimator = "mean_log_probability",
        activation: Activation = "softmax",
        counts: npt.ArrayLike | None = None,
        prior: float | None = None,
        block_bytes: int = 16 << 20,
    ) -> None:
        widths = {each.num_buckets for each in hashes}
        if len(widths) != 1 or min(widths) < 2:
            raise ConfigError(
                f"decoding needs at least one repetition, all with the same two or more buckets; these have "
                f"{sorted(widths) or 'none'}"
            )
        self.num_repetitions = len(hashes)
        self.num_buckets = widths.pop()
        self.num_classes = num_classes
        self.estimator = estimator
        self.activation = activation
        self.block_bytes = block_bytes
        weight = prior_weight(len(hashes)) if prior is None else prior
        self._classes = ClassBlocks(hashes, num_classes, counts=counts, weight=weight, additive=estimator in ADDITIVE)

    def top_k(self, logits: torch.Tensor, k: int) -> TopK:
        """The k best of all classes for each row of ``logits``, of shape (R, n, B).

        Fastest if the logits lie in memory as (R, B, n), a transposed view. Raises ValueError for another shape.
        """
        self._check(logits, k)
        best = _nothing(logits, k)
        rows_at_once = ROWS[logits.device.type]
        for block in self._blocks(logits.device):
            for begin in range(0, logits.shape[1], rows_at_once):
                rows = slice(begin, begin + rows_at_once)
                reduced = self._reduce(block, self._values(logits[:, rows]))
                _keep_best(best, rows, *_best_of_columns(reduced, k), first=block.start)
        return self._finished(best, logits)

    def candidates(self, logits: torch.Tensor, k: int, *, buckets: int = 2) -> TopK:
        """The k best of the classes that several repetitions have in one of their ``buckets`` best buckets.

        These are the best one in each of so many equal parts of a repetition's buckets, which are as good as random
        parts and are found at the price of one maximum. How many repetitions must agree on a class is the smallest
        number by which no more than about 64 classes per row are candidates by chance. Candidates have exact scores;
        other classes are not looked at, and the cost grows with the sizes of the buckets, not with the number of
        classes. Rows with fewer than k candidates are decoded exactly.
        """
        self._check(logits, k)
        best = _nothing(logits, k)
        buckets = min(buckets, self.num_buckets)
        for block in self._blocks(logits.device):
            rows_at_once = self._candidate_rows(block, buckets)
            marks = torch.zeros(rows_at_once, block.size + 1, dtype=torch.int16, device=logits.device)
            for begin in range(0, logits.shape[1], rows_at_once):
                rows = slice(begin, begin + rows_at_once)
                part = logits[:, rows].float()
                row, number = self._candidates(block, part, buckets, marks)
                scores = self._score(block, part, row, number)
                _keep_best(best, rows, *_best_of_ragged(row, number, scores, part.shape[1], k), first=block.start)
        short = best.scores[:, -1].isneginf().nonzero().squeeze(1)
        best = self._finished(best, logits)
        if len(short):
            exact = self.top_k(logits[:, short], k)
            best.classes[short], best.scores[short] = exact.classes, exact.scores
        return best

    def _check(self, logits: torch.Tensor, k: int) -> None:
        expected = (self.num_repetitions, self.num_buckets)
        if logits.ndim != 3 or (logits.shape[0], logits.shape[2]) != expected:
            raise ValueError(
                f"expected logits of shape ({expected[0]}, rows, {expected[1]}), found {tuple(logits.shape)}"
            )
        if not 0 < k <= self.num_classes:
            raise ValueError(f"k must be between 1 and the number of classes, {self.num_classes}; found {k}")

    def _blocks(self, device: torch.device) -> Iterator[ClassBlock]:
        """Blocks of classes whose scores for the rows of one step fit into ``block_bytes``."""
        groups = self.block_bytes // (4 * ROWS[device.type] * GROUP)
        return self._classes.of_size(max(groups, 1) * GROUP, device)

    def _values(self, logits: torch.Tensor) -> torch.Tensor:
        """What is added up, of shape (R B + 1, n): rows lie beside each other; the last line is for padding."""
        repetitions, rows, num_buckets = logits.shape
        values = logits.new_empty((repetitions * num_buckets + 1, rows), dtype=torch.float32)
        values[-1] = -math.inf
        inner = values[:-1].view(repetitions, num_buckets, rows)
        for target, source in zip(inner, logits, strict=True):  # a transposed copy of a matrix has a kernel of its own
            target.copy_(source.t())
        found = bucket_values(inner, self.estimator, self.activation, dim=1)
        if found is not inner:
            inner.copy_(found)
        return values

    def _reduce(self, block: ClassBlock, values: torch.Tensor) -> torch.Tensor:
        """The sum (minimum, median) over repetitions for all classes of a block, of shape (classes, n)."""
        if self.estimator not in ("minimum", "median"):
            reduced = functional.embedding_bag(block.places, values, mode="sum", per_sample_weights=block.weights)
            return reduced if block.bias is None else reduced.add_(block.bias[:, None])
        reduced = values.new_empty((len(block.places), values.shape[1]))
        step = max(self.block_bytes // (4 * self.num_repetitions * values.shape[1]), 1)
        for begin in range(0, len(reduced), step):
            chunk = slice(begin, begin + step)
            gathered = values[block.places[chunk]]
            if block.weights is not None:
                gathered *= block.weights[chunk, :, None]
            reduced[chunk] = _smallest_or_median(gathered, self.estimator)
        return reduced

    def _candidate_rows(self, block: ClassBlock, buckets: int) -> int:
        """How many rows' marks and lists fit into ``block_bytes``."""
        listed = min(self.num_repetitions, MARKED_REPETITIONS) * buckets * block.lists.shape[1]
        fitting = self.block_bytes // max(2 * block.size, 8 * listed)
        return max(min(fitting, CANDIDATE_ROWS[block.places.device.type]), 1)

    def _candidates(
        self, block: ClassBlock, logits: torch.Tensor, buckets: int, marks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows and the classes (within the block) of all candidates.

        Each repetition sets its bit at the classes of its best buckets in ``marks``, which are zero before and after. A
        class is taken from the list of the first repetition that marked it, if enough others did so too.
        """
        repetitions = min(self.num_repetitions, MARKED_REPETITIONS)
        best = _best_buckets(logits[:repetitions], buckets).transpose(0, 1)
        repetition = torch.arange(repetitions, device=logits.device)[:, None]
        places = (best + repetition * self.num_buckets).flatten()
        listed = block.lists.index_select(0, places).view(logits.shape[1], -1).long()
        bits = (1 << repetition).short().expand(-1, buckets * block.lists.shape[1]).flatten()
        marks = marks[: len(listed)]
        marks.scatter_add_(1, listed, bits.repeat(len(listed), 1))
        marks[:, block.size] = 0  # what fills up the lists
        seen = marks.gather(1, listed)
        marks.zero_()
        taken = (seen & (bits - 1)) == 0
        for _ in range(self._votes(repetitions, buckets) - 1):
            seen &= seen - 1
        taken &= seen != 0
        place = taken.flatten().nonzero().squeeze(1)
        return place // listed.shape[1], listed.flatten().index_select(0, place)

    def _votes(self, repetitions: int, buckets: int) -> int:
        """How many repetitions must agree on a candidate: few enough classes reach this number by chance."""
        chance = buckets / self.num_buckets
        expected, votes = float(self.num_classes), 0
        while expected > CHANCE_CANDIDATES and votes < repetitions:
            exactly = math.comb(repetitions, votes) * chance**votes * (1 - chance) ** (repetitions - votes)
            expected -= self.num_classes * exactly
            votes += 1
        return max(votes, 1)

    def _score(self, block: ClassBlock, logits: torch.Tensor, row: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        """The sum (minimum, median) over repetitions for pairs of a row and a class within the block."""
        values = bucket_values(logits, self.estimator, self.activation, dim=2)
        by_repetition, by_row, by_bucket = values.stride()
        flat = values.as_strided(
            (sum((n - 1) * by for n, by in zip(values.shape, values.stride(), strict=True)) + 1,), (1,)
        )
        first = torch.arange(self.num_repetitions, device=logits.device)
        bucket = block.places.index_select(0, number) - first * self.num_buckets
        places = bucket * by_bucket + first * by_repetition + row[:, None] * by_row
        gathered = flat.index_select(0, places.flatten()).view(
            places.shape
        )  # several times faster than values[r, n, b]
        if block.weights is not None:
            gathered = gathered * block.weights[number]
        if self.estimator in ("minimum", "median"):
            return _smallest_or_median(gathered, self.estimator)
        reduced = gathered.sum(1)
        return reduced if block.bias is None else reduced + block.bias[number]

    def _finished(self, best: TopK, logits: torch.Tensor) -> TopK:
        mass: torch.Tensor | float = 1.0
        if self.estimator == "mean_probability" and self.activation == "sigmoid":
            mass = logits.sigmoid().sum(2).mean(0)[:, None]
        scores = class_scores(
            best.scores, self.estimator, repetitions=self.num_repetitions, num_buckets=self.num_buckets, mass=mass
        )
        return TopK(best.classes, scores)


def _smallest_or_median(gathered: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    return gathered.amin(1) if estimator == "minimum" else torch.median(gathered, dim=1).values


def _best_buckets(logits: torch.Tensor, parts: int) -> torch.Tensor:
    """The best bucket in each of so many equal parts of the last dimension.

    Bucket numbers replace the lowest bits of the floats, so that a vectorised maximum brings its place along. That
    leaves 14 bits of precision for 512 buckets, enough to choose candidates by.
    """
    num_buckets = logits.shape[-1]
    low = (1 << (num_buckets - 1).bit_length()) - 1
    numbers = torch.arange(num_buckets, dtype=torch.int32, device=logits.device)
    keys = (logits.view(torch.int32) & ~low).bitwise_or_(numbers).view(torch.float32)
    best = torch.stack([part.amax(-1) for part in keys.tensor_split(parts, dim=-1)], dim=-1)
    return (best.view(torch.int32) & low).clamp_(max=num_buckets - 1)  # an infinite logit loses its number


def _best_of_columns(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and numbers of the k best entries in each column of (whole groups, n)."""
    groups = scores.view(-1, GROUP, scores.shape[1])
    best = groups.amax(1).t().contiguous().topk(min(k, len(groups))).indices
    column = torch.arange(scores.shape[1], device=scores.device)[:, None]
    members = groups[best, :, column].flatten(1)
    values, places = members.topk(min(k, members.shape[1]))
    return values, best.gather(1, places // GROUP) * GROUP + places % GROUP


def _best_of_ragged(
    row: torch.Tensor, number: torch.Tensor, scores: torch.Tensor, rows: int, k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and numbers of the k best entries of each row, from entries in order of their rows."""
    sizes = row.bincount(minlength=rows)
    starts = sizes.cumsum(0) - sizes
    place = torch.arange(len(row), device=row.device) - starts[row]
    width = max(int(sizes.max()), 1)
    padded = scores.new_full((rows, width), -math.inf)
    padded[row, place] = scores
    numbers = number.new_zeros((rows, width))
    numbers[row, place] = number
    values, places = padded.topk(min(k, width))
    return values, numbers.gather(1, places)


def _nothing(logits: torch.Tensor, k: int) -> TopK:
    shape = (logits.shape[1], k)
    return TopK(
        torch.zeros(shape, dtype=torch.int64, device=logits.device),
        torch.full(shape, -math.inf, dtype=torch.float32, device=logits.device),
    )


def _keep_best(best: TopK, rows: slice, scores: torch.Tensor, numbers: torch.Tensor, *, first: int) -> None:
    """Merge a block's best classes, numbered from its ``first``, into the best ones so far."""
    if first == 0:
        best.scores[rows, : scores.shape[1]] = scores
        best.classes[rows, : scores.shape[1]] = numbers
        return
    kept, places = torch.cat([best.scores[rows], scores], dim=1).topk(best.scores.shape[1])
    best.scores[rows] = kept
    best.classes[rows] = torch.cat([best.classes[rows], numbers + first], dim=1).gather(1, places)
