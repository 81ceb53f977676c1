"""From the bucket scores of R repetitions to the k best of K classes, exactly or among likely candidates.

Both run wherever the logits are, on a CPU or a GPU, in a task or on the driver. On a CPU, estimators that are sums have
compiled loops (:mod:`sparkdl.extreme.compiled`), which keep no scores but the best. Everything else is done with
tensors, of at most ``block_bytes`` of scores at once: rows and classes are taken in blocks.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from sparkdl.errors import ConfigError
from sparkdl.extreme import compiled
from sparkdl.extreme.blocks import GROUP, Classes, Prior
from sparkdl.extreme.estimators import ADDITIVE, Activation, Estimator, bucket_values, class_scores, prior_weight
from sparkdl.extreme.hashing import BucketHash
from sparkdl.extreme.joint import Found, JointBuckets

__all__ = ["Decoder", "TopK"]

ROWS = {"cpu": 32, "cuda": 1024}
"""Rows decoded together. On a CPU the values of their buckets should fit into a core's cache (R B x 32 floats are 1 MB
for R = 16, B = 512), and 32 floats fill the registers of a vectorised sum."""
CANDIDATE_ROWS = {"cpu": 128, "cuda": 4096}
"""Rows whose candidates are found together, at most: enough that starting each operation costs little."""
CLASSES_IN_LOOPS = 1 << 20
"""Classes in a block of the compiled loops, which store no scores."""


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
        self._classes = Classes(hashes, num_classes, counts=counts, weight=weight)
        self._joint: dict[torch.device, JointBuckets] = {}

    def top_k(self, logits: torch.Tensor, k: int) -> TopK:
        """The k best of all classes for each row of ``logits``, of shape (R, n, B).

        Raises ValueError for another shape.
        """
        self._check(logits, k)
        best = _nothing(logits, k)
        if self._in_loops(logits):
            terms = self._terms(logits)
            for block in self._classes.blocks(CLASSES_IN_LOOPS, logits.device):
                compiled.scan(terms, block.places.numpy(), best.scores.numpy(), best.classes.numpy(), first=block.start)
            return self._finished(best, logits, torch.from_numpy(terms.normalisers))
        rows_at_once = ROWS[logits.device.type]
        groups = self.block_bytes // (4 * rows_at_once * GROUP)
        prior = self._classes.prior(logits.device)
        for block in self._classes.blocks(max(groups, 1) * GROUP, logits.device):
            for begin in range(0, logits.shape[1], rows_at_once):
                rows = slice(begin, begin + rows_at_once)
                scores = self._reduce(block.places, self._values(logits[:, rows]))
                if prior is not None:
                    of_block = prior.of_classes[block.start : block.start + len(scores), None]
                    self._with_prior(scores[: len(of_block)], of_block, times=self.num_repetitions)
                _keep_best(best, rows, *_best_of_columns(scores, k), first=block.start)
        return self._finished(best, logits)

    def candidates(self, logits: torch.Tensor, k: int, *, buckets: int | None = None) -> TopK:
        """The k best of the classes that lie in one of the ``buckets`` best buckets of several repetitions at once.

        These are found through an inverted index (see :mod:`sparkdl.extreme.joint`) and have exact scores; other
        classes are not looked at, and the cost does not grow with the number of classes. By default ``buckets`` is
        four where there are sixteen repetitions and two tell most classes apart. Rows with fewer than k candidates look
        in twice as many, and again, until that is more than to look at all classes.
        """
        self._check(logits, k)
        if logits.device not in self._joint:
            self._joint[logits.device] = JointBuckets(self._classes.hashes, self.num_classes, logits.device)
        joint = self._joint[logits.device]
        buckets = min(buckets or joint.usual_buckets, self.num_buckets)
        best = _nothing(logits, k)
        if self._in_loops(logits) and (places := self._classes.kept(logits.device)) is not None:
            terms = self._terms(logits)
            best.classes.fill_(-1)  # which is no class, so that each is taken for a new one once
            compiled.search(terms, places.numpy(), joint, buckets, best.scores.numpy(), best.classes.numpy())
            finished = self._finished(best, logits, torch.from_numpy(terms.normalisers))
        else:
            self._score_found(logits, joint, buckets, best)
            finished = self._finished(best, logits)
        short = finished.scores[:, -1].isneginf().nonzero().squeeze(1)
        if len(short):
            those, wider = logits[:, short], min(2 * buckets, self.num_buckets)
            worth_it = buckets < wider and joint.groups * wider**joint.joined < self.num_classes
            again = self.candidates(those, k, buckets=wider) if worth_it else self.top_k(those, k)
            finished.classes[short], finished.scores[short] = again.classes, again.scores
        return finished

    def _in_loops(self, logits: torch.Tensor) -> bool:
        """Whether there are compiled loops for this."""
        return logits.device.type == "cpu" and self.estimator in ADDITIVE

    def _terms(self, logits: torch.Tensor) -> compiled.Terms:
        """What the loops add up: of logits that go through a softmax, themselves, and normalisers to take off later."""
        softmax = self.estimator == "mean_log_probability" and self.activation == "softmax"
        values = logits if softmax else bucket_values(logits, self.estimator, self.activation, dim=2)
        prior = self._classes.prior(logits.device)
        if prior is None:
            prior = Prior(torch.zeros(self.num_classes), torch.zeros(self.num_repetitions, self.num_buckets))
        return compiled.Terms(
            values.float().contiguous().numpy(),
            prior.of_buckets.numpy(),
            (self.num_repetitions * prior.of_classes).numpy(),
            np.zeros(logits.shape[1] if softmax else 0, np.float32),
        )

    def _score_found(self, logits: torch.Tensor, joint: JointBuckets, buckets: int, best: TopK) -> None:
        """Put the best of the classes that the joint buckets find into ``best``, a block of rows at a time."""
        lookups = joint.groups * buckets**joint.joined
        row_bytes = 8 * lookups + 16 * self.num_repetitions * joint.found_by_chance(buckets)
        rows_at_once = min(max(int(self.block_bytes / row_bytes), 1), CANDIDATE_ROWS[logits.device.type])
        for begin in range(0, logits.shape[1], rows_at_once):
            rows = slice(begin, begin + rows_at_once)
            part = logits[:, rows].float()
            found = joint.find(part, buckets)
            best.scores[rows], best.classes[rows] = _best_of_found(
                found, self._score(part, found), part.shape[1], best.scores.shape[1], times=joint.groups
            )

    def _check(self, logits: torch.Tensor, k: int) -> None:
        expected = (self.num_repetitions, self.num_buckets)
        if logits.ndim != 3 or (logits.shape[0], logits.shape[2]) != expected:
            raise ValueError(
                f"expected logits of shape ({expected[0]}, rows, {expected[1]}), found {tuple(logits.shape)}"
            )
        if not 0 < k <= self.num_classes:
            raise ValueError(f"k must be between 1 and the number of classes, {self.num_classes}; found {k}")

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
        prior = self._classes.prior(logits.device)
        if prior is not None:
            self._with_prior(inner, prior.of_buckets[:, :, None])
        return values

    def _with_prior(self, values: torch.Tensor, term: torch.Tensor, *, times: int = 1) -> torch.Tensor:
        """Values with one term of the prior, which is a logarithm, in place; sums contain it so many ``times``."""
        return values.add_(term, alpha=times) if self.estimator in ADDITIVE else values.mul_(term.exp())

    def _reduce(self, places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """The sum (minimum, median) over repetitions for all classes of a block, of shape (classes, n)."""
        if self.estimator not in ("minimum", "median"):
            return functional.embedding_bag(places, values, mode="sum")
        reduced = values.new_empty((len(places), values.shape[1]))
        step = max(self.block_bytes // (4 * self.num_repetitions * values.shape[1]), 1)
        for begin in range(0, len(reduced), step):
            chunk = slice(begin, begin + step)
            reduced[chunk] = _smallest_or_median(values[places[chunk]], self.estimator)
        return reduced

    def _score(self, logits: torch.Tensor, found: Found) -> torch.Tensor:
        """The sum (minimum, median) over repetitions for pairs of a row and a class."""
        values = bucket_values(logits, self.estimator, self.activation, dim=2)
        places = self._classes.places_of(found.number)
        by_repetition, by_row, by_bucket = values.stride()
        first = torch.arange(self.num_repetitions, device=logits.device)
        at = places if by_bucket == 1 else places * by_bucket
        at = at + found.row[:, None] * by_row + first * (by_repetition - self.num_buckets * by_bucket)
        end = sum((size - 1) * by for size, by in zip(values.shape, values.stride(), strict=True)) + 1
        flat = values.as_strided((end,), (1,))
        values = flat.index_select(0, at.flatten()).view(at.shape)  # several times faster than values[r, n, b]
        prior = self._classes.prior(logits.device)
        if prior is not None:
            self._with_prior(values, prior.of_buckets.flatten().index_select(0, places.flatten()).view(places.shape))
        least = self.estimator in ("minimum", "median")
        scores = _smallest_or_median(values, self.estimator) if least else values.sum(1)
        if prior is not None:
            self._with_prior(scores, prior.of_classes.index_select(0, found.number), times=self.num_repetitions)
        return scores

    def _finished(self, best: TopK, logits: torch.Tensor, normalisers: torch.Tensor | None = None) -> TopK:
        mass: torch.Tensor | float = 1.0
        if self.estimator == "mean_probability" and self.activation == "sigmoid":
            mass = logits.sigmoid().sum(2).mean(0)[:, None]
        reduced = best.scores if normalisers is None or not len(normalisers) else best.scores - normalisers[:, None]
        scores = class_scores(
            reduced, self.estimator, repetitions=self.num_repetitions, num_buckets=self.num_buckets, mass=mass
        )
        return TopK(best.classes, scores)


def _smallest_or_median(gathered: torch.Tensor, estimator: Estimator) -> torch.Tensor:
    return gathered.amin(1) if estimator == "minimum" else torch.median(gathered, dim=1).values


def _best_of_columns(scores: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and numbers of the k best entries in each column of (whole groups, n)."""
    groups = scores.view(-1, GROUP, scores.shape[1])
    best = groups.amax(1).t().contiguous().topk(min(k, len(groups))).indices
    column = torch.arange(scores.shape[1], device=scores.device)[:, None]
    members = groups[best, :, column].flatten(1)
    values, places = members.topk(min(k, members.shape[1]))
    return values, best.gather(1, places // GROUP) * GROUP + places % GROUP


def _best_of_found(
    found: Found, scores: torch.Tensor, rows: int, k: int, *, times: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores and numbers of the k best of each row's classes, which may occur so many ``times`` each."""
    sizes = found.row.bincount(minlength=rows)
    starts = sizes.cumsum(0) - sizes
    place = torch.arange(len(scores), device=scores.device) - starts[found.row]
    width = max(int(sizes.max()) if rows else 0, k)
    padded = scores.new_full((rows, width), -math.inf)
    padded[found.row, place] = scores
    numbers = found.number.new_zeros((rows, width))
    numbers[found.row, place] = found.number
    values, places = padded.topk(min(k * times, width))
    numbers, order = numbers.gather(1, places).sort(dim=1, stable=True)  # the same ones come to lie side by side
    values = values.gather(1, order)
    values[:, 1:].masked_fill_(numbers[:, 1:] == numbers[:, :-1], -math.inf)
    values, places = values.topk(k)
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
