"""Buckets of similar classes, for repetitions that do not hash classes randomly. Runs in a task.

A class is represented by the sum of its training rows. Classes are split into balanced halves by spherical 2-means
(Dhillon and Modha, 2001, "Concept decompositions"), and these into halves again, until there is one part per bucket.
This is the tree of Parabel (Prabhu et al., 2018), of which only the last level is kept. Each repetition starts from
other random classes and so has other clusters.
"""

import numpy as np
import numpy.typing as npt
from scipy import sparse

from sparkdl.data import Dataset
from sparkdl.data.reading.read import verified_content
from sparkdl.data.sparse_rows import Rows, read_rows
from sparkdl.extreme.loops import compiled

__all__ = ["class_sums", "cluster_classes"]

MOST_PASSES = 10
SMALLEST = 0.03
"""Smaller features of a class are dropped. A frequent class has tens of thousands, of which at most 1,000 are kept."""
SETTLED = 0.01
"""A split has converged when a smaller share of its classes than this changes sides."""
LEAST = 1e-30
"""Replaces a squared norm that rounds to zero."""


def class_sums(dataset: Dataset) -> sparse.csr_array:
    """The sum of each class's training rows, divided by its Euclidean norm: float32 of shape (K, features)."""
    rows = Rows.join([read_rows(verified_content(group)) for group in dataset.row_groups("train")])
    of_rows = sparse.csr_array((rows.values, rows.indices, rows.offsets), (rows.rows, dataset.input.shape[0]))
    labels = np.ones(len(rows.labels), np.float32), rows.labels, rows.label_offsets
    sums = sparse.csr_array(sparse.csr_array(labels, (rows.rows, dataset.num_classes)).T @ of_rows)
    norms = np.sqrt(sums.multiply(sums).sum(axis=1))
    sums.data /= np.repeat(np.where(norms > 0, norms, 1), np.diff(sums.indptr)).astype(np.float32)
    sums.data[abs(sums.data) < SMALLEST] = 0
    sums.eliminate_zeros()
    return sums


def cluster_classes(sums: sparse.csr_array, num_buckets: int, *, seed: int, repetition: int) -> npt.NDArray[np.int32]:
    """The bucket of each class, of shape (K,), the same for the same seed and repetition.

    The sizes of buckets differ by at most one class; a class without rows is in a random bucket.
    """
    random = np.random.default_rng([seed % 2**63, repetition])
    buckets: npt.NDArray[np.int32] = random.integers(num_buckets, size=sums.shape[0], dtype=np.int32)
    members = np.flatnonzero(np.diff(sums.indptr))
    parts: list[tuple[npt.NDArray[np.int64], int, int]] = [(members, 0, num_buckets)]
    arrays = sums.indices, sums.data, sums.indptr
    workplace = np.zeros((sums.shape[1], 2), np.float32)
    while parts:
        classes, first, number = parts.pop()
        if number == 1:
            buckets[classes] = first
            continue
        half = number // 2
        cut = len(classes) * half // number
        random.shuffle(classes)  # the first two are the initial clusters
        if 0 < cut < len(classes):
            _separate(*arrays, classes, cut, workplace)
        parts += [(classes[:cut], first, half), (classes[cut:], first + half, number - half)]
    return buckets


@compiled()
def _separate(features, values, ends, classes, cut, sums):  # type: ignore[no-untyped-def]
    """Order classes so that the first ``cut`` are one cluster and the others another one; start from the first two.

    ``sums``, of shape (features, 2), is scratch memory for the two clusters' sums, zero before and after the call.
    """
    similar = np.empty((len(classes), 2), np.float64)
    _add(features, values, ends, classes[0], 0, sums)
    _add(features, values, ends, classes[1], 1, sums)
    for taken in range(MOST_PASSES):
        for place, number in enumerate(classes):
            similar[place] = 0
            for entry in range(ends[number], ends[number + 1]):
                for side in range(2):
                    similar[place, side] += values[entry] * sums[features[entry], side]
        # A sum's squared norm is the sum of its members' dot products with it.
        left = similar[:cut, 0].sum() if taken else 1.0
        right = similar[cut:, 1].sum() if taken else 1.0
        scores = similar[:, 1] / np.sqrt(max(right, LEAST)) - similar[:, 0] / np.sqrt(max(left, LEAST))
        order = np.argsort(scores, kind="mergesort")
        changed = (order[:cut] >= cut).sum()
        classes[:] = classes[order]
        for number in classes:
            for entry in range(ends[number], ends[number + 1]):
                sums[features[entry]] = 0
        if changed < SETTLED * len(classes):
            return
        for place, number in enumerate(classes):
            _add(features, values, ends, number, 0 if place < cut else 1, sums)
    for number in classes:
        for entry in range(ends[number], ends[number + 1]):
            sums[features[entry]] = 0


@compiled()
def _add(features, values, ends, number, side, sums):  # type: ignore[no-untyped-def]
    for entry in range(ends[number], ends[number + 1]):
        sums[features[entry], side] += values[entry]
