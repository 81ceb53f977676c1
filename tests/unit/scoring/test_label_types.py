"""A predicted label has the type of the labels that were prepared."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from sparkdl.data.card import CARD_NAME
from sparkdl.data.label_types import arrow_type
from sparkdl.data.model_card import ModelCard
from sparkdl.errors import ModelError
from sparkdl.scoring.predictor import answering_task
from sparkdl.tracking.translate import ranked, signature

CARD: dict[str, Any] = {
    "input": {"column": "features", "kind": "vector", "shape": [2], "dtype": "float32"},
    "label_names": ["1", "0", "12"],
    "raw_columns": {"features": "array<float>"},
    "preprocessing": False,
}


def saved(folder: Path, **changes: Any) -> ModelCard:
    (folder / CARD_NAME).write_text(json.dumps(CARD | changes))
    return ModelCard.load(folder)


@pytest.mark.parametrize(
    ("label_type", "labels"),
    [
        (None, ["1", "0", "12"]),
        ("string", ["1", "0", "12"]),
        ("tinyint", [1, 0, 12]),
        ("bigint", [1, 0, 12]),
        ("float", [1.0, 0.0, 12.0]),
        ("double", [1.0, 0.0, 12.0]),
        ("decimal(10,2)", [Decimal("1.00"), Decimal("0.00"), Decimal("12.00")]),
    ],
)
@pytest.mark.parametrize("task", ["classification", "multi_label"])
def test_answers_have_the_type_of_labels_and_texts_where_a_card_does_not_say(
    label_type: str | None, labels: list[Any], task: str, tmp_path: Path
) -> None:
    card = saved(tmp_path, label_type=label_type, task=task)
    found = card.read_labels(tmp_path)
    assert found.to_pylist() == labels and found.type == arrow_type(label_type)
    task_of_card = answering_task(card)
    outputs = torch.tensor([[-1.0, -2.0, 3.0], [4.0, -3.0, -4.0]])
    answer = pa.table(task_of_card.answers(outputs, found, top_k=2), schema=task_of_card.answer).to_pydict()
    expected = [labels[2], labels[0]]
    assert answer["prediction"] == (expected if task == "classification" else [[each] for each in expected])
    assert [[pair["label"] for pair in row] for row in answer["top_k"]] == [[labels[2], labels[0]], labels[:2]]


def test_truth_values_are_labels(tmp_path: Path) -> None:
    card = saved(tmp_path, label_type="boolean", label_names=["false", "true"])
    assert card.read_labels(tmp_path).to_pylist() == [False, True]


def test_a_name_that_is_no_label_of_its_type_is_damage(tmp_path: Path) -> None:
    for label_type in ("int", "boolean", "decimal(4,0)"):
        with pytest.raises(ModelError, match="is damaged"):
            saved(tmp_path, label_type=label_type, label_names=["a", "b"]).read_labels(tmp_path)
    with pytest.raises(ModelError, match="label_type"):
        saved(tmp_path, label_type="struct<a:int>")


def test_the_signature_says_the_type_of_a_prediction() -> None:
    for label_type, word in {"int": "integer", "bigint": "long", "boolean": "boolean", None: "string"}.items():
        outputs = signature({"a": "double"}, ranked(label_type)).outputs
        prediction, _, top = outputs.to_dict()
        assert prediction["type"] == word
        assert top["items"]["properties"]["label"]["type"] == word
