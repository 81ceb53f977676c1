"""Expected memory and time of training: of repetitions, of one-vs-all, and of the ranker. Runs anywhere."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Cost", "Workload", "ranker_parts", "training_bytes"]

FLOAT_BYTES = 4
FIRST_LAYER_BYTES = 6
"""Bytes per weight of the first layer in a task: the float32 weight, and two copies of its byte while it is stored."""
DENSE_BYTES = 16
"""Bytes per other parameter: weight, gradient and Adam's two moments."""
TASK_BYTES = 500 << 20
"""Other memory of a training task: Python, torch, a window of the data, a batch's activations."""
FIRST_LAYER_SECONDS = 1.6e-9
"""Of one core, to train a weight of the first layer with a row that has its feature (AMD Milan): most of it is the way
to memory. With other cores, scale all expected times."""
OTHER_LAYERS_SECONDS = 1.6e-10
"""Of one core, to train a weight of the other layers with a row."""
DECODING = 0.8
"""The time to decode a row to its shortlist, relative to training on it once."""
RANKING_SECONDS = 5.5e-8
"""Of one core, to train the ranker with one feature of one pair of a row and a class."""
START_SECONDS = 8
"""Overhead of both stages: imports, compilation of loops, clusters, files."""
RANDOM_NEGATIVES = 50
"""Random classes for which a row is a negative, in addition to its shortlist."""
CLASSES_PER_TASK = 2500
"""About how many classes a task of the ranker learns: few enough to give two slots, or eight, equal work."""
RANKING_ENTRY_BYTES = 16
"""Bytes per feature of a row in a task of the ranker: its index and value, twice while row groups are concatenated."""
RANKING_PAIR_BYTES = 60
"""Bytes per pair of a row and a class there: class, row and sign, unsorted and sorted by class."""


@dataclass(frozen=True)
class Cost:
    """The cost of one method of classification."""

    name: str
    parameters: int
    model_bytes: int
    """The finished model, in float32."""
    task_bytes: int
    """The largest training task, where the first layer is trained as :mod:`sparkdl.extreme.fit` does."""
    seconds: float
    """Expected training time."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is learned: the cost of every method follows from it."""

    num_features: int
    nonzeros: int
    """Features of a row that are not zero."""
    rows: int
    epochs: int

    def cost(
        self, name: str, hidden: Sequence[int], outputs: int, *, copies: int = 1, packed: int = 1, waves: int = 1
    ) -> Cost:
        """The cost of ``copies`` networks, of which ``packed`` share a task, and of which tasks run in ``waves``."""
        parameters = copies * count_parameters(self.num_features, hidden, outputs)
        seconds = waves * packed * self.epochs * self.rows * self.row_seconds(hidden, outputs)
        in_training = packed * training_bytes(self.num_features, hidden, outputs) + TASK_BYTES
        return Cost(name, parameters, parameters * FLOAT_BYTES, in_training, seconds)

    def row_seconds(self, hidden: Sequence[int], outputs: int) -> float:
        """Seconds of one core to train a network once on a row."""
        first = [*hidden, outputs][0] * min(self.nonzeros, self.num_features)
        others = count_parameters(0, hidden, outputs)
        return first * FIRST_LAYER_SECONDS + others * OTHER_LAYERS_SECONDS

    def ranker_seconds(self, decoding: float, pairs: float) -> float:
        """Seconds of one core for the second stage, with seconds of ``decoding`` and ``pairs`` to learn per row."""
        return self.rows * (decoding + pairs * self.nonzeros * RANKING_SECONDS)

    def ranker_bytes(self, pairs: float) -> int:
        """The memory of a task of the ranker that learns so many pairs per row, in bytes."""
        return round(self.rows * (self.nonzeros * RANKING_ENTRY_BYTES + pairs * RANKING_PAIR_BYTES)) + TASK_BYTES


def count_parameters(num_features: int, hidden: Sequence[int], outputs: int) -> int:
    """Weights and biases of a network with these layers."""
    layers = [num_features, *hidden, outputs]
    return sum(before * after + after for before, after in pairwise(layers))


def training_bytes(num_features: int, hidden: Sequence[int], num_buckets: int) -> int:
    """The memory of one repetition in a task, in bytes."""
    first = num_features * [*hidden, num_buckets][0]
    others = count_parameters(num_features, hidden, num_buckets) - first
    step_sizes = num_features * FLOAT_BYTES
    return first * FIRST_LAYER_BYTES + step_sizes + others * DENSE_BYTES


def ranker_parts(num_classes: int) -> int:
    """The number of ranges of classes, each a task, in which the ranker is trained."""
    return int(2 ** max(round(math.log2(num_classes / CLASSES_PER_TASK)), 0))
