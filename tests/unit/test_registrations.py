"""Whatever settings can name is there, and nothing else is: each of several kinds is registered once."""

import typing
from collections.abc import Collection
from typing import Any

import pytest

from sparkdl.data.preparing.stages import KINDS
from sparkdl.data.sources import open as sources
from sparkdl.models import FORM_FILES
from sparkdl.settings import Stage
from sparkdl.settings.compress import FormName
from sparkdl.settings.section import TaskName
from sparkdl.settings.source import OWN_FORMATS
from sparkdl.training.tasks import TASKS


@pytest.mark.parametrize(
    ("names", "registered"),
    [
        pytest.param(typing.get_args(TaskName), TASKS, id="tasks"),
        pytest.param(typing.get_args(Stage.model_fields["kind"].annotation), KINDS, id="stages"),
        pytest.param(OWN_FORMATS, {**sources.OWN, **sources.OF_IMAGES}, id="sources"),
        pytest.param(typing.get_args(FormName), FORM_FILES, id="forms"),
    ],
)
def test_each_name_in_the_settings_is_registered(names: Collection[str], registered: Collection[Any]) -> None:
    assert sorted(names) == sorted(registered)
