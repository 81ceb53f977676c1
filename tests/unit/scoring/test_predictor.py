from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sparkdl.errors import DataError, ModelError
from sparkdl.scoring.network import NetworkModel
from sparkdl.scoring.predictor import Predictor


def _rows(count: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, 8, 6, 1), dtype=np.uint8)


def _probabilities(folder: Path, rows: np.ndarray, **options: int) -> np.ndarray:
    return _network(folder).outputs_of(rows, **options)["logits"].softmax(dim=1).numpy()


def _network(folder: Path) -> NetworkModel:
    model = Predictor.load(folder).model
    assert isinstance(model, NetworkModel)
    return model


def test_probabilities_do_not_depend_on_the_batch_size(images: Path) -> None:
    expected = _probabilities(images, _rows(100))
    assert expected.shape == (100, 3)
    np.testing.assert_allclose(expected.sum(axis=1), 1, rtol=1e-5)
    for batch_size in (1, 7, 100, 5000):
        np.testing.assert_allclose(_probabilities(images, _rows(100), batch_size=batch_size), expected, rtol=1e-4)


def test_an_answer_is_label_probability_and_the_likeliest_classes(images: Path) -> None:
    predictor, rows = Predictor.load(images), _rows(5)
    column = pa.array([row.tobytes() for row in rows])
    prediction, probability, top_k = (part.to_pylist() for part in predictor.answer(column, top_k=2))
    expected = _probabilities(images, rows)
    order = np.argsort(-expected, axis=1)
    assert prediction == [predictor.labels[int(i)].as_py() for i in order[:, 0]]
    np.testing.assert_allclose(probability, expected.max(axis=1))
    assert [[pair["label"] for pair in row] for row in top_k] == [
        [predictor.labels[int(i)].as_py() for i in row] for row in order[:, :2]
    ]
    assert [row[0]["probability"] for row in top_k] == probability


def test_top_k_is_never_more_than_the_classes(images: Path) -> None:
    column = pa.array([row.tobytes() for row in _rows(2)])
    assert [len(row) for row in Predictor.load(images).answer(column, top_k=9)[2].to_pylist()] == [3, 3]


def test_no_rows_give_no_answers(images: Path) -> None:
    answer = Predictor.load(images).answer(pa.array([], pa.binary()))
    assert [part.to_pylist() for part in answer] == [[], [], []]


def test_vectors_come_as_lists_of_any_float(vectors: Path) -> None:
    predictor, rows = Predictor.load(vectors), [[0.0, 1, 2, 3], [4.0, 5, 6, 7]]
    single = predictor.answer(pa.array(rows, pa.list_(pa.float32())))
    double = predictor.answer(pa.array(rows, pa.list_(pa.float64())))
    assert single[0].to_pylist() == double[0].to_pylist()


def test_the_memory_of_the_rows_is_left_alone(images: Path) -> None:
    rows = _rows(3)
    before = rows.copy()
    _probabilities(images, rows)
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([b"\x00" * 48, b"\x00" * 47]), r"column 'image': 1 rows do not have the size of \(8, 6, 1\)"),
        (pa.array([None, b"\x00" * 48]), "column 'image' has 1 null rows"),
        (pa.array(["text"]), "column 'image' must be binary with 48 bytes a row"),
    ],
)
def test_rows_of_another_kind_are_told_with_column_and_count(images: Path, column: pa.Array, words: str) -> None:
    with pytest.raises(DataError, match=words):
        Predictor.load(images).answer(column)


def test_rows_that_are_not_numbers_are_counted(vectors: Path) -> None:
    rows = np.zeros((5, 4), np.float32)
    rows[[1, 3], 2] = np.nan
    with pytest.raises(DataError, match="column 'features': 2 rows give no finite result"):
        _network(vectors).outputs_of(rows)


def test_an_array_of_another_shape_is_refused(vectors: Path) -> None:
    with pytest.raises(DataError, match=r"the model reads rows of shape \(4,\), not \(5,\)"):
        _network(vectors).outputs_of(np.zeros((2, 5), np.float32))


def test_a_folder_without_its_parts_is_told_apart(images: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no readable card\.json"):
        Predictor.load(tmp_path)
    (tmp_path / "card.json").write_text("{}")
    with pytest.raises(ModelError, match="not a valid model card: label_names: Field required"):
        Predictor.load(tmp_path)
    (tmp_path / "card.json").write_bytes((images / "card.json").read_bytes())
    with pytest.raises(ModelError, match="there is no network at"):
        Predictor.load(tmp_path)
