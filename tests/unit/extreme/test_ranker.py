"""The second stage: what it is made of, how it orders candidates, and whom it does not trust."""

import hashlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from benchmarks.extreme.made_up import Shape, write_dataset
from sparkdl.data import Dataset, SparseBatch
from sparkdl.data.reading.read import verified_content
from sparkdl.data.sparse_rows import Rows, read_rows
from sparkdl.errors import ConfigError, ModelError
from sparkdl.extreme.decode import TopK
from sparkdl.extreme.ranker import RANKER_NAME, Classifiers, Ranker, RankerCard, TrainedRanker, write_ranker
from sparkdl.extreme.train_ranker import fit_range
from sparkdl.settings import Extreme, LinearRankerOptions

WIDTH = 6
OPTIONS = LinearRankerOptions(candidates=3, ensemble_weight=0.5)
CLASSIFIERS = Classifiers(
    np.array([0, 1, 5, 5], np.int32),
    np.array([2, -1, 0.5, 3], np.float32),
    np.array([0, 2, 3, 3, 4], np.int64),
    np.array([0, -0.5, -1, -1], np.float32),
)
"""Four classes; the third one has no weights."""


def test_a_score_is_the_squared_hinge_loss_and_a_share_of_the_candidates_own(tmp_path: Path) -> None:
    card = write_ranker(tmp_path, TrainedRanker(CLASSIFIERS, OPTIONS))
    ranker = Ranker.open(tmp_path, card, width=WIDTH, num_classes=4)
    batch = SparseBatch(
        torch.tensor([0, 5, 1]),
        torch.tensor([1.0, 1.0, 2.0]),
        torch.tensor([0, 2, 2, 3]),  # the second row has no features
        torch.empty(0, dtype=torch.int64),
        torch.zeros(4, dtype=torch.int64),
    )
    candidates = TopK(torch.tensor([[2, 1, 0], [2, 1, 0], [3, 0, 2]]), torch.tensor([[-1.0, -2, -4]] * 3))
    found = ranker.order(batch, candidates, 2)
    # Margins: 0: 2, 0, -2; 1: 0, -0.5, ...; 2: -1; 3: -1.
    assert found.classes.tolist() == [[1, 0], [0, 1], [3, 2]]
    assert found.scores.tolist() == [[-1.0 - 1, -2.0], [-1.0 - 2, -2.25 - 1], [-4.0 - 0.5, -4.0 - 2]]


@pytest.mark.parametrize(
    "change",
    [
        {"features": np.array([0, 1, WIDTH, 5], np.int32)},
        {"features": np.array([0, 1, -1, 5], np.int32)},
        {"features": np.array([0, 1, 5, 5], np.int64)},
        {"ends": np.array([0, 3, 2, 3, 4], np.int64)},
        {"ends": np.array([0, 2, 3, 3, 5], np.int64)},
        {"ends": np.array([-1, 2, 3, 3, 4], np.int64)},
        {"values": np.zeros(3, np.float32)},
        {"biases": np.zeros(3, np.float32)},
    ],
)
def test_weights_that_would_lead_loops_astray_are_refused(tmp_path: Path, change: dict[str, NDArray[np.int64]]) -> None:
    content = save(CLASSIFIERS._replace(**change).to_tensors())
    (tmp_path / RANKER_NAME).write_bytes(content)
    card = RankerCard(candidates=3, ensemble_weight=0.5, sha256=hashlib.sha256(content).hexdigest())
    with pytest.raises(ModelError, match=r"ranker\.safetensors is not for 6 features and 4 classes"):
        Ranker.open(tmp_path, card, width=WIDTH, num_classes=4)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(
        tmp_path_factory.mktemp("ranker") / "data", Shape(rows=20_000, features=500, classes=90, labels=2, draws=8)
    )


def nothing(rows: list[int], group: int) -> NDArray[np.int32]:
    """Shortlists of one class each."""
    return np.zeros((rows[group], 1), np.int32)


def test_classes_learn_the_same_however_they_are_divided(dataset: Dataset) -> None:
    rows = [group.rows for group in dataset.row_groups("train")]
    assert len(rows) > 1
    fit = partial(fit_range, dataset, Extreme(), LinearRankerOptions(random_negatives=5), partial(nothing, rows))
    whole = fit(0, 90)
    for one, other in zip(Classifiers.join([fit(0, 17), fit(17, 60), fit(60, 90)]), whole, strict=True):
        np.testing.assert_array_equal(one, other)
    assert whole.fit(500, 90)
    assert (np.diff(whole.ends) > 0).mean() > 0.9


def test_texts_of_labels_are_further_rows_of_their_classes(tmp_path: Path) -> None:
    dataset = write_dataset(
        tmp_path / "data", Shape(rows=400, features=500, classes=90, labels=2, draws=8, test_rows=90)
    )
    rows = [group.rows for group in dataset.row_groups("train")]

    def fit(label_texts: str | None) -> Classifiers:
        options = LinearRankerOptions(random_negatives=5, label_texts=label_texts)
        return fit_range(dataset, Extreme(), options, partial(nothing, rows), 0, 90)

    with_texts, without = fit("test"), fit(None)
    texts = Rows.join([read_rows(verified_content(group)) for group in dataset.row_groups("test")])
    described = np.unique(texts.labels)
    kept_with, kept_without = (np.diff(each.ends) for each in (with_texts, without))
    assert (kept_with[described] > kept_without[described]).mean() > 0.9
    others = np.setdiff1d(np.arange(90), described)
    np.testing.assert_array_equal(kept_with[others], kept_without[others])


def test_texts_of_labels_have_a_split_of_their_own() -> None:
    with pytest.raises(
        ConfigError, match=r"label_texts is `train`: the texts of labels must have a split of their own"
    ):
        Extreme(ranker={"kind": "linear", "label_texts": "train"})
