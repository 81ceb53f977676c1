"""Whatever settings can name is there, and nothing else is: each of several kinds is registered once."""

import typing
from collections.abc import Collection
from typing import Any

import pytest

from sparkdl.collectives.averaging import ADDED_UP, GATHERED, TOPOLOGIES
from sparkdl.data.preparing.stages import KINDS
from sparkdl.data.sources import open as sources
from sparkdl.models import FORM_FILES
from sparkdl.settings import Stage
from sparkdl.settings.averaging import Averaging, Compression, Topology
from sparkdl.settings.compress import FormName
from sparkdl.settings.section import Section, TaskName
from sparkdl.settings.source import OWN_FORMATS
from sparkdl.settings.strategies import AsynchronousOptions
from sparkdl.settings.tune import SamplerName
from sparkdl.training.asynchronous.methods import METHODS
from sparkdl.training.strategies import KINDS as STRATEGIES
from sparkdl.training.tasks import TASKS
from sparkdl.tuning.samplers import SAMPLERS


@pytest.mark.parametrize(
    ("names", "registered"),
    [
        pytest.param(typing.get_args(TaskName), TASKS, id="tasks"),
        pytest.param(typing.get_args(Stage.model_fields["kind"].annotation), KINDS, id="stages"),
        pytest.param(OWN_FORMATS, {**sources.OWN, **sources.OF_IMAGES}, id="sources"),
        pytest.param(typing.get_args(FormName), FORM_FILES, id="forms"),
        pytest.param(typing.get_args(Topology), {*TOPOLOGIES, "ring", "two_levels"}, id="topologies"),
        pytest.param(typing.get_args(SamplerName), {*SAMPLERS, "grid"}, id="samplers"),
    ],
)
def test_each_name_in_the_settings_is_registered(names: Collection[str], registered: Collection[Any]) -> None:
    assert sorted(names) == sorted(registered)


@pytest.mark.parametrize(
    ("section", "registered"),
    [
        pytest.param(Averaging, STRATEGIES, id="synchronous strategies"),
        pytest.param(AsynchronousOptions, METHODS, id="asynchronous strategies"),
        pytest.param(Compression, {*ADDED_UP, *GATHERED}, id="compressions"),
    ],
)
def test_the_options_of_each_kind_are_registered(section: type[Section], registered: Collection[type[Section]]) -> None:
    assert {each for each in kinds_of(section) if "kind" in each.model_fields} == set(registered)


def kinds_of(section: type[Section]) -> list[type[Section]]:
    """All sections of this project that are derived from one."""
    direct = [each for each in section.__subclasses__() if each.__module__.startswith("sparkdl.")]
    return [kind for each in direct for kind in (each, *kinds_of(each))]
