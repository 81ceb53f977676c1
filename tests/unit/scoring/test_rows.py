from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from sparkdl.scoring.predictor import Model, Predictor
from sparkdl.scoring.raw_inputs import ReadRows
from sparkdl.scoring.rows import answer_each, answer_inputs

WIDTH, BATCH = 4, 64
POISON: dict[int, tuple[list[float | None] | None, str]] = {
    0: (None, "column 'features' has 1 null rows"),
    70: ([1.0, 2.0], "column 'features': 1 rows do not have the size of (4,)"),
    71: ([1.0, None, 3.0, 4.0], "column 'features' has 1 null elements"),
    72: ([float("inf")] * WIDTH, "column 'features' has values that are NaN, infinite or beyond float32"),
    198: ([float("nan")] * WIDTH, "column 'features' has values that are NaN, infinite or beyond float32"),
    199: ([3e38] * WIDTH, "column 'features': 1 rows give no finite result"),
}


@dataclass
class Counted:
    """A model that counts how often it is asked, and fails for rows that begin with a number below zero."""

    model: Model
    rows: list[int] = field(default_factory=list)

    def outputs(self, column: pa.Array | pa.ChunkedArray, *, batch_size: int) -> dict[str, torch.Tensor]:
        self.rows.append(len(column))
        if any(row is not None and (row[0] or 0) < 0 for row in column.to_pylist()):
            raise IndexError("index out of range\nin self")
        return self.model.outputs(column, batch_size=batch_size)


@pytest.fixture
def predictor(vectors: Path) -> Predictor:
    opened = Predictor.load(vectors)
    return replace(opened, model=Counted(opened.model))


def column(poison: dict[int, list[float | None] | None]) -> pa.Array:
    rows = np.random.default_rng(0).random((200, WIDTH)).tolist()
    return pa.array([poison.get(index, row) for index, row in enumerate(rows)], pa.list_(pa.float32()))


def test_a_row_that_cannot_be_scored_takes_no_other_with_it(predictor: Predictor) -> None:
    good = predictor.answer(column({}), top_k=2, batch_size=BATCH)
    bad = column({index: value for index, (value, _) in POISON.items()})
    answer, reasons = answer_each(predictor, bad, top_k=2, batch_size=BATCH)
    for found, expected in zip(answer, good, strict=True):
        assert found.type == expected.type
        assert [index for index, value in enumerate(found.to_pylist()) if value is None] == list(POISON)
    kept = [index for index in range(200) if index not in POISON]
    assert answer[0].take(kept) == good[0].take(kept)
    np.testing.assert_allclose(answer[1].take(kept), good[1].take(kept), rtol=1e-5)
    for index, (_, reason) in POISON.items():
        assert reasons[index].as_py().startswith(reason)
    assert reasons.null_count == 200 - len(POISON)


def test_whatever_a_row_makes_the_model_raise_is_the_reason(predictor: Predictor) -> None:
    _, reasons = answer_each(predictor, column({5: [-1.0, 0, 0, 0]}), top_k=2, batch_size=BATCH)
    assert reasons.drop_null().to_pylist() == ["IndexError: index out of range"]


def test_one_row_among_many_is_found_in_a_few_small_passes(predictor: Predictor) -> None:
    assert isinstance(predictor.model, Counted)
    answer_each(predictor, column({100: None}), top_k=2, batch_size=BATCH)
    assert len(predictor.model.rows) == 4 + 2 * 6  # the batches, and what 64 rows are halved to
    assert sum(predictor.model.rows) < 200 + 2 * BATCH


def test_rows_that_all_fail_are_all_told(predictor: Predictor) -> None:
    nothing = pa.array([None] * 100, pa.list_(pa.float32()))
    answer, reasons = answer_each(predictor, nothing, top_k=2, batch_size=BATCH)
    assert reasons.null_count == 0
    assert all(part.null_count == 100 for part in answer)


def test_a_row_that_is_refused_is_not_asked_about(predictor: Predictor) -> None:
    assert isinstance(predictor.model, Counted)
    refused = pa.array([f"row {row}" if row % 3 == 0 else None for row in range(200)])
    inputs = column({3: [-1.0, 0, 0, 0], 100: None})
    answer, reasons = answer_inputs(predictor, ReadRows(inputs, refused), top_k=2, batch_size=BATCH)
    assert reasons is not None
    assert [why for why in reasons.to_pylist() if why] == sorted(
        [*refused.drop_null().to_pylist(), "column 'features' has 1 null rows; fill or drop them"],
        key=lambda why: int(why[4:]) if why.startswith("row") else 100,
    )
    good = predictor.answer(column({}), top_k=2, batch_size=BATCH)
    assert [label.as_py() for label in answer[0]] == [
        None if reasons[row].is_valid else label.as_py() for row, label in enumerate(good[0])
    ]
