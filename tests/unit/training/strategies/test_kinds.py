"""Every kind of strategy that settings know is registered once."""

import typing

import pytest

from sparkdl.settings.averaging import Averaging
from sparkdl.settings.section import Section
from sparkdl.settings.strategies import AsynchronousOptions, Strategies
from sparkdl.training.asynchronous.assemble import SlicedModel
from sparkdl.training.strategies import KINDS, SERVED, strategy_of
from sparkdl.training.strategies.easgd import EASGD
from sparkdl.training.strategies.strategy import Strategy


def options_in(annotation: typing.Any) -> set[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return {annotation}
    return {found for each in typing.get_args(annotation) for found in options_in(each)}


def test_each_kind_is_created_or_served() -> None:
    known = options_in(Strategies)
    assert {each for each in known if issubclass(each, Averaging)} == KINDS.keys()
    served = {each.model_fields["kind"].default for each in known if issubclass(each, AsynchronousOptions)}
    assert served == set(SERVED)


@pytest.mark.parametrize(
    ("kind", "assembler"),
    [("allreduce", Strategy), ("easgd", EASGD), ("deepspark", EASGD), ("downpour", SlicedModel)],
)
def test_a_checkpoint_is_assembled_by_the_strategy_that_wrote_it(kind: str, assembler: type) -> None:
    assert strategy_of(kind) is assembler
