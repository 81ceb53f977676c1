"""Settings that cannot be meant."""

from typing import Any

import pytest
from pydantic import ValidationError

from sparkdl.settings import Cluster, Prepare, Section, Split, Tracking, Train


@pytest.mark.parametrize(
    ("section", "values", "says"),
    [
        (Prepare, {"output": "d", "features": ["age", "label"]}, "names the label 'label'; a model would only copy it"),
        (Prepare, {"output": "d", "features": ["age", "fare", "age"]}, "names a column twice"),
        (Split, {"fractions": {"train": 0.2}}, "`train` is not among the fractions"),
        (Train, {"seed": 2**64}, "less than"),
        (Train, {"learning_rate": float("inf")}, "finite number"),
        (Train, {"warmup_epochs": float("inf")}, "finite number"),
    ],
)
def test_what_cannot_be_meant_is_an_error(section: type[Section], values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        section.model_validate(values)


def test_a_limit_of_time_may_be_infinite() -> None:
    assert Cluster(stall_timeout=float("inf")).stall_timeout == float("inf")


def test_what_was_always_possible_still_is() -> None:
    assert Prepare(output="d", seed=-1).seed == -1
    assert not Tracking(register_as="").register_as
