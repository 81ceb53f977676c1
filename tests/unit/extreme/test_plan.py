"""How many buckets and repetitions, and what they cost."""

import math
import warnings

import numpy as np
import pytest

from sparkdl.errors import ConfigError
from sparkdl.extreme.expected_cost import RANKING_ENTRY_BYTES, RANKING_PAIR_BYTES, TASK_BYTES, ranker_parts
from sparkdl.extreme.hashing import bucket_hashes, table
from sparkdl.extreme.plan import fewest_repetitions, plan_extreme

WORDNET = {"num_classes": 20_000, "num_features": 45_000, "rows": 85_000}
ODP = {"num_classes": 105_033, "num_features": 421_705, "rows": 1_084_404, "hidden": []}


def test_the_numbers_of_the_published_odp_model():
    found = plan_extreme(**ODP, num_buckets=32, repetitions=25)
    assert found.mach.parameters == 25 * 32 * (421_705 + 1)  # 338 million, 1.35 GB
    assert found.mach.model_bytes == 4 * found.mach.parameters
    (linear,) = found.one_vs_all
    assert linear.parameters == 105_033 * (421_705 + 1)  # 44 billion, 178 GB
    assert "1.35 GB" in found.table and "177 GB" in found.table


def test_hidden_layers_are_compared_with_both_kinds_of_one_vs_all():
    found = plan_extreme(**WORDNET, num_buckets=512, repetitions=16, hidden=[256])
    assert found.mach.parameters == 16 * (45_001 * 256 + 257 * 512)
    linear, hidden = found.one_vs_all
    assert linear.parameters == 45_001 * 20_000
    assert hidden.parameters == 45_001 * 256 + 257 * 20_000


def test_repetitions_follow_the_union_bound():
    assert fewest_repetitions(20_000, 512, delta=0.01) == math.ceil(math.log(20_000**2 / 0.01) / math.log(512)) == 4
    assert fewest_repetitions(10, 10, delta=0.1) == 3  # exactly three, not one more for a rounding error
    found = plan_extreme(**WORDNET, num_buckets=4, delta=0.001)
    assert found.repetitions == found.fewest_repetitions == 20
    assert found.delta <= 0.001


def test_as_many_repetitions_as_the_bound_asks_for_tell_all_classes_apart():
    repetitions = fewest_repetitions(3000, 16, delta=0.05)
    alike = 0
    for seed in range(40):
        alike += len(np.unique(table(bucket_hashes(16, repetitions, seed=seed), 3000), axis=1).T) < 3000
    assert alike <= 5


def test_what_is_not_given_is_chosen():
    found = plan_extreme(**WORDNET)
    assert (found.num_buckets, found.repetitions) == (512, 8)
    assert (found.shortlist, found.mach.name) == (100, "MACH, hidden 120")
    small = plan_extreme(100, num_features=10, rows=10, labels=3)
    assert small.num_buckets < 100 == small.shortlist
    assert plan_extreme(**WORDNET, labels=20).shortlist == 400
    assert plan_extreme(**WORDNET, ranked=False).shortlist is None


def test_buckets_shrink_until_a_task_fits():
    roomy = plan_extreme(**ODP)
    tight = plan_extreme(**ODP, memory_per_slot=1 << 30)
    assert tight.num_buckets < roomy.num_buckets
    assert tight.mach.task_bytes <= 1 << 30 < roomy.mach.task_bytes
    assert tight.fewest_repetitions > roomy.fewest_repetitions


def changes(message):
    """What the error offers: {what: number}."""
    offered = message.partition("change one of these: ")[2].split("; ")
    return dict(change.rsplit(" to ", 1) for change in offered)


def test_a_plan_that_cannot_fit_says_which_number_to_change_and_to_what():
    request = {**WORDNET, "num_buckets": 512, "hidden": [256], "memory_per_slot": 1 << 30, "repetitions_per_task": 16}
    with pytest.raises(ConfigError, match=r"needs 1\.67 GB, and a slot has 1\.07 GB") as caught:
        plan_extreme(**request)
    offered = changes(str(caught.value))
    assert set(offered) == {"repetitions_per_task", "the features, hashed,", "hidden", "memory_per_slot"}
    plan_extreme(**{**request, "repetitions_per_task": int(offered["repetitions_per_task"])})
    plan_extreme(**{**request, "num_features": int(offered["the features, hashed,"].replace(",", ""))})
    plan_extreme(**{**request, "hidden": [int(offered["hidden"].strip("[]"))]})
    plan_extreme(
        **{**request, "memory_per_slot": int(offered["memory_per_slot"].removesuffix(" MB").replace(",", "")) * 10**6}
    )


def test_each_change_is_the_largest_that_fits():
    request = {**ODP, "num_buckets": 512, "memory_per_slot": 1 << 30}
    with pytest.raises(ConfigError) as caught:
        plan_extreme(**request)
    buckets = int(changes(str(caught.value))["num_buckets"].replace(",", ""))
    assert plan_extreme(**{**request, "num_buckets": buckets}).num_buckets == buckets
    with pytest.raises(ConfigError):
        plan_extreme(**{**request, "num_buckets": buckets + 1})


def test_a_slot_without_room_for_any_model_is_named():
    with pytest.raises(ConfigError, match="change one of these: memory_per_slot to"):
        plan_extreme(**WORDNET, memory_per_slot=TASK_BYTES)


def test_packed_repetitions_share_a_task_and_slots_share_the_time():
    one = plan_extreme(**WORDNET, hidden=[64])
    packed = plan_extreme(**WORDNET, hidden=[64], repetitions_per_task=8)
    assert packed.mach.task_bytes - TASK_BYTES == 8 * (one.mach.task_bytes - TASK_BYTES)
    first, others = 45_000 * 64, 64 + 65 * 512
    assert one.mach.task_bytes == 6 * first + 4 * 45_000 + 16 * others + TASK_BYTES
    assert packed.mach.seconds == pytest.approx(one.mach.seconds)
    assert plan_extreme(**WORDNET, hidden=[64], slots=2).mach.seconds == pytest.approx(one.mach.seconds / 2)
    assert plan_extreme(**WORDNET, hidden=[64], slots=5).mach.seconds == pytest.approx(
        one.mach.seconds / 4
    )  # four rounds
    assert plan_extreme(**WORDNET, hidden=[64], epochs=3).mach.seconds == pytest.approx(one.mach.seconds * 3)


def test_the_second_stage_is_counted_and_shared_by_slots_too():
    whole, alone = plan_extreme(**WORDNET), plan_extreme(**WORDNET, ranked=False)
    assert whole.mach == alone.mach
    assert whole.seconds > alone.seconds
    assert plan_extreme(**WORDNET, slots=4).ranker_seconds == pytest.approx(whole.ranker_seconds / 4)
    assert plan_extreme(**WORDNET, shortlist=400).ranker_seconds > 1.5 * whole.ranker_seconds
    assert plan_extreme(**WORDNET, shortlist=10**6).shortlist == 20_000


def test_a_task_of_the_ranker_holds_all_rows_and_the_pairs_of_its_classes():
    assert plan_extreme(**WORDNET, ranked=False).ranker_task_bytes == 0
    few, many = (plan_extreme(**WORDNET | {"num_classes": number}) for number in (20_000, 2_560_000))
    rows = 85_000 * 32 * RANKING_ENTRY_BYTES
    pairs = 85_000 * (100 + 50 + 1) * RANKING_PAIR_BYTES
    assert few.ranker_task_bytes == pytest.approx(rows + pairs / 8 + TASK_BYTES, abs=1)
    assert many.ranker_task_bytes == pytest.approx(rows + pairs / 1024 + TASK_BYTES, abs=1)
    assert [ranker_parts(number) for number in (2, 2_500, 20_000, 2_560_000)] == [1, 1, 8, 1024]


def test_the_table_says_how_long_both_stages_take_together():
    found = plan_extreme(**WORDNET, epochs=20)
    (line,) = (line for line in found.table.splitlines() if line.startswith("both stages"))
    assert line.split() == ["both", "stages", *f"{found.seconds / 60:.3g} min".split()]
    assert found.seconds > found.mach.seconds + found.ranker_seconds


def test_the_table_has_a_column_for_each_way():
    lines = plan_extreme(**WORDNET, hidden=[256]).table.splitlines()
    assert lines[0].split("  ")[-1].strip() == "one-vs-all, hidden 256"
    assert lines[1].split() == ["outputs", "8", "x", "512", "20,000", "20,000"]
    assert str(plan_extreme(**WORDNET)) == plan_extreme(**WORDNET).table


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_classes": 1}, "at least two classes to tell apart, not 1"),
        ({"repetitions": 0}, "repetitions must be at least 1, not 0"),
        ({"num_buckets": 1}, "num_buckets must be at least 2, not 1"),
        ({"delta": 0}, "delta is a probability between 0 and 1, not 0"),
        ({"hidden": [0]}, r"hidden\[0\] must be at least 1, not 0"),
        ({"rows": 0}, "rows must be at least 1, not 0"),
    ],
)
def test_impossible_numbers_are_errors(wrong, message):
    with pytest.raises(ConfigError, match=message):
        plan_extreme(**{**WORDNET, **wrong})


def test_as_many_buckets_as_classes_are_a_warning():
    with pytest.warns(UserWarning, match="20,000 buckets for 20,000 classes: hashing buys nothing"):
        plan_extreme(**WORDNET, num_buckets=20_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan_extreme(**WORDNET, num_buckets=19_999)
