"""Chooses the numbers of buckets and repetitions, and compares what they cost, before anything is trained."""

import bisect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparkdl.errors import ConfigError
from sparkdl.extreme.expected_cost import (
    DECODING,
    RANDOM_NEGATIVES,
    START_SECONDS,
    TASK_BYTES,
    Cost,
    Workload,
    ranker_parts,
    training_bytes,
)
from sparkdl.tables import aligned

__all__ = ["Plan", "fewest_repetitions", "plan_extreme"]

USUAL_REPETITIONS = 8
"""More repetitions than needed to distinguish classes still average out the noise of each; the papers use 16 to 32.
With a ranker, eight classify as many held-out rows correctly."""
BUCKETS_PER_ROOT = 4
"""B is the power of two nearest to this many times the square root of K: 512 for 20,000 classes. Two repetitions then
already leave most classes alone in their pair of buckets, and the last layer stays small."""
USUAL_WIDTH = 120
"""Width of the hidden layer: half of it costs 0.3 points of P@5, and twice as much overfits."""
USUAL_SHORTLIST = 100
"""Classes in a shortlist: four of five correct classes are among the first hundred."""
SHORTLIST_PER_LABEL = 20
"""Least classes in a shortlist per label of a row."""
DEFAULT_NONZEROS = 32
"""Default number of non-zero features of a row; a gloss or a title has a dozen, a document hundreds."""


@dataclass(frozen=True)
class Plan:
    """Buckets, repetitions, shortlist and their cost, beside one-vs-all on the same features."""

    num_classes: int
    num_buckets: int
    repetitions: int
    fewest_repetitions: int
    """R >= log(K^2 / delta) / log B, for the wanted delta."""
    delta: float
    """The probability that some pair of classes shares its bucket in every repetition is at most this, by the union
    bound with the R of this plan (1 if the bound says nothing)."""
    shortlist: int | None
    """The classes of a row that the ranker orders; None without one."""
    ranker_seconds: float
    """Expected time of the second stage: decoding to shortlists, and training the ranker."""
    ranker_task_bytes: int
    """The largest task that trains the ranker: it holds all training rows; 0 without one."""
    mach: Cost
    """The first stage: all meta-models."""
    one_vs_all: tuple[Cost, ...]
    """Linear; and with the same hidden layers, if there are any."""

    def __str__(self) -> str:
        return self.table

    @property
    def seconds(self) -> float:
        """Expected time of all training, from the first task's start to the last one's end."""
        return self.mach.seconds + self.ranker_seconds + START_SECONDS

    @property
    def table(self) -> str:
        """The plan as text, one line per quantity and one column per way to classify."""
        costs = [self.mach, *self.one_vs_all]
        rivals = len(self.one_vs_all)
        lines = [
            ["", *(cost.name for cost in costs)],
            ["outputs", f"{self.repetitions} x {self.num_buckets:,}", *[f"{self.num_classes:,}"] * rivals],
            ["parameters", *(f"{cost.parameters:,}" for cost in costs)],
            ["model, in float32", *(_readable_bytes(cost.model_bytes) for cost in costs)],
            ["times MACH's size", "", *(f"{cost.parameters / self.mach.parameters:.3g}" for cost in costs[1:])],
            ["largest training task", *(_readable_bytes(cost.task_bytes) for cost in costs)],
            ["expected training time", *(_readable_time(cost.seconds) for cost in costs)],
            ["and of the ranker", _readable_time(self.ranker_seconds) if self.shortlist else "", *[""] * rivals],
            ["its largest task", _readable_bytes(self.ranker_task_bytes) if self.shortlist else "", *[""] * rivals],
            ["both stages", _readable_time(self.seconds), *[""] * rivals],
            ["shortlist", f"{self.shortlist:,}" if self.shortlist else "", *[""] * rivals],
            ["two classes look alike", f"probability <= {self.delta:.1g}", *["never"] * rivals],
            ["fewest repetitions", f"{self.fewest_repetitions}", *[""] * rivals],
        ]
        return aligned(lines)


def plan_extreme(
    num_classes: int,
    *,
    num_features: int,
    rows: int,
    delta: float = 0.01,
    hidden: Sequence[int] | None = None,
    num_buckets: int | None = None,
    repetitions: int | None = None,
    labels: float = 1,
    ranked: bool = True,
    shortlist: int | None = None,
    repetitions_per_task: int = 1,
    epochs: int = 1,
    slots: int = 1,
    nonzeros: int = DEFAULT_NONZEROS,
    memory_per_slot: int | None = None,
) -> Plan:
    """Choose the numbers that are not given, and calculate what training costs. Runs anywhere, reads no data.

    ``hidden`` are the widths of hidden layers, none for linear models; ``labels`` how many a row has on average, and
    ``ranked`` whether there is a ranker. ``seconds`` are those of one core of each slot.
    ``memory_per_slot`` is in bytes; without a given ``num_buckets``, buckets are halved until a task fits into it.
    Warns (UserWarning) if there are at least as many buckets as classes. Raises :class:`ConfigError` for impossible
    numbers, and for a plan that does not fit: the message says which number to change, and to what.
    """
    at_least_one = {
        "num_features": num_features,
        "rows": rows,
        "repetitions_per_task": repetitions_per_task,
        "epochs": epochs,
        "slots": slots,
        "nonzeros": nonzeros,
        "labels": labels,
        **{f"hidden[{place}]": width for place, width in enumerate(hidden or ())},
        **({} if repetitions is None else {"repetitions": repetitions}),
    }
    _check_numbers(at_least_one, num_classes, num_buckets, delta)
    largest = None if memory_per_slot is None else max(memory_per_slot - TASK_BYTES, 0)
    buckets = num_buckets or _usual_buckets(num_classes)
    hidden = [min(USUAL_WIDTH, max(buckets // 4, 1))] if hidden is None else hidden
    while (
        num_buckets is None
        and largest is not None
        and buckets > 2
        and training_bytes(num_features, hidden, buckets) * repetitions_per_task > largest
    ):
        buckets //= 2
    needed = training_bytes(num_features, hidden, buckets) * repetitions_per_task
    if largest is not None and needed > largest:
        raise ConfigError(_what_to_change(num_features, hidden, buckets, repetitions_per_task, needed, largest))
    if buckets >= num_classes:
        warnings.warn(
            f"{buckets:,} buckets for {num_classes:,} classes: hashing buys nothing; "
            f"set num_buckets well below {num_classes:,}, or train an ordinary classifier",
            stacklevel=2,
        )
    fewest = fewest_repetitions(num_classes, buckets, delta=delta)
    chosen = repetitions or max(fewest, USUAL_REPETITIONS)

    workload = Workload(num_features=num_features, nonzeros=nonzeros, rows=rows, epochs=epochs)
    listed, ranker_seconds, ranker_bytes = None, 0.0, 0
    if ranked:
        listed = min(shortlist or max(USUAL_SHORTLIST, math.ceil(SHORTLIST_PER_LABEL * labels)), num_classes)
        decoding = chosen * workload.row_seconds(hidden, buckets) * DECODING
        pairs = min(listed + RANDOM_NEGATIVES + labels, num_classes)
        ranker_seconds = workload.ranker_seconds(decoding, pairs) / slots
        ranker_bytes = workload.ranker_bytes(pairs / ranker_parts(num_classes))
    packed = min(repetitions_per_task, chosen)
    rivals = [workload.cost("one-vs-all, linear", (), num_classes)]
    if hidden:
        rivals.append(workload.cost(f"one-vs-all, hidden {_names(hidden)}", hidden, num_classes))
    name = f"MACH, hidden {_names(hidden)}" if hidden else "MACH, linear"
    waves = math.ceil(chosen / (packed * slots))
    return Plan(
        num_classes=num_classes,
        num_buckets=buckets,
        repetitions=chosen,
        fewest_repetitions=fewest,
        delta=min(math.exp(min(2 * math.log(num_classes) - chosen * math.log(buckets), 0.0)), 1.0),
        shortlist=listed,
        ranker_seconds=ranker_seconds,
        ranker_task_bytes=ranker_bytes,
        mach=workload.cost(name, hidden, buckets, copies=chosen, packed=packed, waves=waves),
        one_vs_all=tuple(rivals),
    )


def fewest_repetitions(num_classes: int, num_buckets: int, *, delta: float) -> int:
    """The smallest R by which all pairs of classes differ in some repetition with probability 1 - ``delta``.

    R >= log(K^2 / delta) / log B: a pair collides in all repetitions with probability B^-R, and there are
    fewer than K^2 pairs (union bound; Huang et al., 2018, arXiv 1810.04254).
    """
    exact = (2 * math.log(num_classes) - math.log(delta)) / math.log(num_buckets)
    return max(math.ceil(exact - 1e-9), 1)  # 3 is 3, whatever the logarithms' last bits say


def _check_numbers(at_least_one: Mapping[str, float], num_classes: int, num_buckets: int | None, delta: float) -> None:
    """Raise :class:`ConfigError` for the first number that cannot be."""
    for name, number in at_least_one.items():
        if number < 1:
            raise ConfigError(f"{name} must be at least 1, not {number}")
    if num_classes < 2:
        raise ConfigError(f"there must be at least two classes to tell apart, not {num_classes}")
    if num_buckets is not None and num_buckets < 2:
        raise ConfigError(f"num_buckets must be at least 2, not {num_buckets}: one bucket tells nothing apart")
    if not 0 < delta < 1:
        raise ConfigError(f"delta is a probability between 0 and 1, not {delta:g}")


def _usual_buckets(num_classes: int) -> int:
    power = round(math.log2(BUCKETS_PER_ROOT * math.sqrt(num_classes)))
    while power > 1 and 2**power >= num_classes:
        power -= 1
    return int(2**power)


def _what_to_change(
    num_features: int, hidden: Sequence[int], buckets: int, packed: int, needed: int, largest: int
) -> str:
    """The error of a plan that does not fit, with each single change that would make it fit."""

    def most(upper: int, repetition_with: Callable[[int], int]) -> int:
        """The largest number up to ``upper`` by which the task fits; 0 if none does."""
        numbers = range(1, upper + 1)
        return bisect.bisect_left(numbers, True, key=lambda number: repetition_with(number) * packed > largest)

    changes = []
    each = needed // packed
    if packed > 1 and each <= largest:
        changes.append(f"repetitions_per_task to {largest // each}")
    features = most(num_features, lambda number: training_bytes(number, hidden, buckets))
    if features >= 2:
        changes.append(f"the features, hashed, to {features:,}")
    if len(hidden) == 1 and (width := most(hidden[0], lambda number: training_bytes(num_features, [number], buckets))):
        changes.append(f"hidden to [{width}]")
    fewer = most(buckets, lambda number: training_bytes(num_features, hidden, number))
    if fewer >= 2:
        changes.append(f"num_buckets to {fewer:,}")
    changes.append(f"memory_per_slot to {math.ceil((needed + TASK_BYTES) / 1e6):,} MB")
    return (
        f"a task with {packed} repetition{'s' * (packed > 1)} of {buckets:,} buckets over {num_features:,} features "
        f"needs {_readable_bytes(needed + TASK_BYTES)}, and a slot has {_readable_bytes(largest + TASK_BYTES)}; "
        f"change one of these: {'; '.join(changes)}"
    )


def _names(hidden: Sequence[int]) -> str:
    return ", ".join(map(str, hidden))


def _readable_bytes(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB"


def _readable_time(seconds: float) -> str:
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.3g} {unit}"
    return f"{seconds:.3g} s"
