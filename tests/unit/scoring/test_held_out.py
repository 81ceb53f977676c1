"""``score.split`` scores the rows that a model has not seen, or none."""

from typing import Any

import pytest

from sparkdl.data.model_card import ModelCard
from sparkdl.data.preparing.decisions import kept_settings
from sparkdl.errors import ConfigError
from sparkdl.scoring.held_out import check_split
from sparkdl.settings import Prepare, Split, Stage

PREPARE = Prepare(output="there", features=["a", "b"], seed=3)


def card(settings: dict[str, Any]) -> ModelCard:
    return ModelCard.model_validate(
        {
            "input": {"column": "features", "kind": "vector", "shape": [2], "dtype": "float32"},
            "label_names": ["0", "1"],
            "raw_columns": {"a": "double", "b": "double"},
            "preprocessing": False,
            "settings": settings,
        }
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 4}, "seed was 3 and is now 4"),
        ({"features": ["a"]}, r"features was \['a', 'b'\] and is now \['a'\]"),
        ({"label": "kind", "seed": 4}, "label was 'label' and is now 'kind'; seed was 3"),
        ({"split": Split(fractions={"test": 0.2})}, "split was"),
        ({"split": Split(group=["customer"])}, "split was"),
    ],
)
def test_settings_that_put_other_rows_into_a_split_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=f"^score.split: the dataset of models:/m/1 has other rows .*{words}"):
        check_split(card(kept_settings(PREPARE)), PREPARE.model_copy(update=change), origin="models:/m/1")


def test_settings_that_leave_rows_where_they_are_may_change() -> None:
    changed = PREPARE.model_copy(
        update={"output": "elsewhere", "rows_per_group": 9, "stages": [Stage(kind="impute", columns=["a"])]}
    )
    check_split(card(kept_settings(PREPARE)), changed, origin="models:/m/1")


def test_a_model_from_before_a_setting_or_of_another_make_is_scored() -> None:
    before = kept_settings(PREPARE)
    del before["qid"], before["split"]["group"]
    check_split(card(before), PREPARE, origin="models:/m/1")
    check_split(card({}), PREPARE, origin="models:/m/1")
