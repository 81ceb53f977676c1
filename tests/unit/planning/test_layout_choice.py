"""Which layout is taken."""

from sparkdl.planning.layout_choice import Choice, Choices
from sparkdl.settings import RankLayout
from sparkdl.settings.strategies import AllReduceOptions

WHOLE = Choice(RankLayout(data=2), AllReduceOptions(), seconds=1.0, rows=64, memory=1e9, sent=0.0)
SHARDED = WHOLE._replace(strategy=AllReduceOptions(shard="all"), seconds=1.5, memory=6e8)
TENSOR = WHOLE._replace(layout=RankLayout(data=1, tensor=2), seconds=0.6, rows=32, memory=5e8)


def test_of_the_layouts_that_fit_the_one_is_taken_that_learns_from_most_rows_a_second() -> None:
    choices = Choices([WHOLE, SHARDED, TENSOR], {}, room=2e9)
    assert choices.best is WHOLE
    assert choices.advice.endswith('{data: 2} learns from most rows a second: "cluster.layout={data: 2}"')
    narrow = choices._replace(room=8e8)
    assert narrow.best is TENSOR
    assert narrow.advice.startswith("each rank has 800 MB left; of the layouts that fit, {data: 1, tensor: 2} learns")


def test_of_two_that_are_about_as_fast_the_simpler_one_is_taken() -> None:
    near = TENSOR._replace(seconds=WHOLE.seconds / 2 / 1.04)
    assert Choices([WHOLE, near], {}, room=2e9).best is WHOLE
    faster = TENSOR._replace(seconds=WHOLE.seconds / 2 / 1.2)
    assert Choices([WHOLE, faster], {}, room=2e9).best is faster


def test_where_nothing_fits_the_smallest_one_is_named() -> None:
    none = Choices([WHOLE, SHARDED, TENSOR], {}, room=1e8)
    assert none.best is None
    assert "no layout fits: {data: 1, tensor: 2} takes 500 MB; take more ranks" in none.advice


def test_shards_are_named_as_a_command_line_says_them() -> None:
    assert SHARDED.name == "{data: 2}, shard: all"
    assert SHARDED.overrides == '"cluster.layout={data: 2}" "train.strategy={kind: allreduce, shard: all}"'


def test_the_table_has_a_line_for_each_and_names_a_reason_once() -> None:
    refused = {"{data: 2, pipeline: 2}": "it cannot be traced", "{data: 1, pipeline: 4}": "it cannot be traced"}
    lines = Choices([WHOLE, TENSOR], refused, room=2e9).table.splitlines()
    assert lines[0].split()[:3] == ["cluster.layout", "ms", "a"]
    assert lines[1].split() == ["{data:", "2}", "1,000.0", "64", "1,000", "0.00", "64"]
    assert lines[3] == "not {data: 2, pipeline: 2}, {data: 1, pipeline: 4}: it cannot be traced"
