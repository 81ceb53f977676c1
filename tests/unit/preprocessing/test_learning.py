"""What stages learn of rows is the same in whatever parts tasks have them."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.errors import DataError
from sparkdl.preprocessing import Column, FittedPipeline, UnfittedPipeline
from sparkdl.preprocessing.assembling import Assemble
from sparkdl.preprocessing.categories import Index, LearnIndex
from sparkdl.preprocessing.learner import Facts, Learner
from sparkdl.preprocessing.numbers import Impute, LearnMeans, LearnMedians, LearnModes
from sparkdl.preprocessing.scaling import LearnScale, Standardise
from sparkdl.preprocessing.stage import FittedStage
from sparkdl.preprocessing.sums import added
from sparkdl.preprocessing.word_counts import CountHashes, CountWords, LearnWeights, LearnWords, WeighWords
from sparkdl.preprocessing.words import CutAtPattern


def fit(stages: Sequence[FittedStage | Learner], *parts: dict[str, Column]) -> FittedPipeline:
    """The stages, fitted on rows that several tasks have."""
    pipeline = UnfittedPipeline(tuple(stages), "made")
    while learners := pipeline.learners:
        facts = {stage: Facts(np.zeros((2, 0)), {}) for stage in learners}
        for part in parts:
            for found in pipeline.look(part):
                sums, counts = facts[found.stage]
                counted = {place: Counter(texts.to_pylist()) for place, texts in enumerate(found.texts)}
                both = {place: Counter(counts.get(place, {})) + some for place, some in counted.items()}
                facts[found.stage] = Facts(added(sums, found.sums) if sums.size else found.sums, both)
        pipeline = pipeline.learned(facts)
    return pipeline.fitted()


def numbers(*values: float | None) -> dict[str, Column]:
    return {"x": pa.array(values, pa.float64())}


def surrogate(learner: Learner, *parts: dict[str, Column]) -> float:
    (stage,) = fit([learner], *parts).stages
    assert isinstance(stage, Impute)
    return stage.surrogates[0]


IMPUTED = ("x",), ("filled",), ("x",)


def test_a_mean_is_that_of_what_is_not_missing() -> None:
    assert surrogate(LearnMeans(*IMPUTED), numbers(1, None, 2), numbers(float("nan"), 6)) == 3


def test_of_what_is_as_frequent_the_smallest_stands_in() -> None:
    assert surrogate(LearnModes(*IMPUTED), numbers(5, 5, None, -2.5), numbers(-2.5, 7)) == -2.5


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64(), pa.int32()])
def test_a_median_is_the_lower_one_of_two_to_the_last_bit(kind: pa.DataType) -> None:
    random = np.random.default_rng(1)
    for count in (1, 2, 3, 100, 1001):
        values = (random.standard_normal(count) * 1e6).astype(np.float32).astype(kind.to_pandas_dtype())
        parts = [{"x": pa.array(part, kind)} for part in np.array_split(values, 3)]
        expected = np.sort(values.astype(np.float64))[(count - 1) // 2]
        assert surrogate(LearnMedians(*IMPUTED), *parts) == expected


def test_the_median_of_any_numbers_is_exact_to_a_part_in_two_to_the_31() -> None:
    values = np.random.default_rng(2).standard_normal(999)
    assert surrogate(LearnMedians(*IMPUTED), {"x": pa.array(values)}) == pytest.approx(np.median(values), rel=2**-31)


@pytest.mark.parametrize("kind", [LearnMeans, LearnMedians, LearnModes])
def test_a_column_without_a_value_is_named(kind: type[Learner]) -> None:
    with pytest.raises(DataError, match="column 'x' has no value in the rows of the split 'train'"):
        surrogate(kind(*IMPUTED), numbers(None, float("nan")))


def test_standardised_numbers_have_mean_zero_and_deviation_one_and_what_is_constant_is_zero() -> None:
    random = np.random.default_rng(0)
    values = random.standard_normal(500) * 1e-3 + 1e8  # a deviation that a sum of rounded squares would lose
    columns: dict[str, Column] = {"x": pa.array(values), "c": pa.array(np.full(500, 0.1))}
    pipeline = fit([Assemble(("x", "c"), "both"), LearnScale("both", "made")], columns)
    made = np.asarray(pipeline.transform(columns, "made"))
    assert abs(made[:, 0].mean()) < 1e-4 and made[:, 0].std(ddof=1) == pytest.approx(1)
    assert not made[:, 1].any()
    scale = pipeline.stages[1]
    assert isinstance(scale, Standardise) and scale.mean is not None and scale.scale is not None
    assert 1 / scale.scale[0] == pytest.approx(values.astype(np.longdouble).std(ddof=1), rel=1e-12)


def test_categories_are_in_the_order_of_their_frequency_and_then_of_their_letters() -> None:
    learner = LearnIndex(("t", "n"), ("a", "b"))
    one = {"t": pa.array(["b", "a", None, "c"]), "n": pa.array([1.5, float("nan"), None, 1e10])}
    other = {"t": pa.array(["c", "b"]), "n": pa.array([1e10, -0.0])}
    (stage,) = fit([learner], one, other).stages
    assert stage == Index(("t", "n"), ("a", "b"), (("b", "c", "a"), ("1.0E10", "-0.0", "1.5")))


def test_a_stage_waits_for_what_it_reads_and_others_do_not() -> None:
    stages = [
        LearnMeans(("x",), ("filled",), ("x",)),
        Assemble(("filled",), "one"),
        LearnScale("one", "scaled"),
        LearnIndex(("t",), ("place",)),
        Assemble(("scaled", "place"), "made"),
    ]
    first = UnfittedPipeline(tuple(stages), "made")
    assert list(first.learners) == [0, 3]
    columns = numbers(1, None, 3) | {"t": pa.array(["a", "a", "b"])}
    made = fit(stages, columns).transform(columns, "made")
    assert np.asarray(made).tolist() == [[-1, 0], [0, 0], [1, 1]]


TEXTS: dict[str, Column] = {"t": pa.array(["red red blue", "red", "", "green blue"])}


def test_words_of_most_rows_are_the_vocabulary_and_weigh_by_how_many_rows_have_them() -> None:
    cut = CutAtPattern.of_words("t", "words")
    found = fit([cut, LearnWords("words", "counts", None, "made", 9, 1, "'t'")], TEXTS)
    _, count, weigh = found.stages
    assert isinstance(count, CountWords) and count.vocabulary.to_pylist() == ["blue", "red", "green"]
    assert isinstance(weigh, WeighWords)
    assert weigh.weights == pytest.approx(np.log([5 / 3, 5 / 3, 5 / 2]))


def test_hashed_words_weigh_the_same_and_rare_ones_nothing() -> None:
    stages = [CutAtPattern.of_words("t", "words"), CountHashes("words", "counts", 64, binary=False)]
    weigh = fit([*stages, LearnWeights("counts", "counts", "made", 2)], TEXTS).stages[-1]
    assert isinstance(weigh, WeighWords)
    assert sorted(weigh.weights)[-2:] == pytest.approx(np.log([5 / 3, 5 / 3])) and np.count_nonzero(weigh.weights) == 2


def test_a_vocabulary_without_words_is_an_error_that_says_what_to_do() -> None:
    cut = CutAtPattern.of_words("t", "words")
    with pytest.raises(DataError, match=r"no word is in 3 training rows; lower `minimum_documents`, or .* 't'"):
        fit([cut, LearnWords("words", "counts", None, "made", 9, 3, "'t'")], {"t": pa.array(["...", ""])})
