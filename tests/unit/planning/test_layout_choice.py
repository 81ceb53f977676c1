"""Which layout is taken."""

from sparkdl.planning.layout_choice import Choice, Choices
from sparkdl.settings import RankLayout
from sparkdl.settings.strategies import AllReduceOptions

WHOLE = Choice(RankLayout(data=2), AllReduceOptions(), predicted=1.0, rows=64, memory=1e9, sent=0.0)
SHARDED = WHOLE._replace(strategy=AllReduceOptions(shard="all"), predicted=1.5, memory=6e8)
TENSOR = WHOLE._replace(layout=RankLayout(data=1, tensor=2), predicted=0.6, rows=32, memory=5e8)


def test_of_the_layouts_that_fit_the_one_is_taken_that_learns_from_most_rows_a_second() -> None:
    choices = Choices([WHOLE, SHARDED, TENSOR], {}, room=2e9)
    assert choices.best is WHOLE
    assert choices.advice.endswith('{data: 2} learns from most rows a second: "cluster.layout={data: 2}"')
    narrow = choices._replace(room=8e8)
    assert narrow.best is TENSOR
    assert narrow.advice.startswith("each rank has 800 MB left; of the layouts that fit, {data: 1, tensor: 2} learns")


def test_of_two_that_are_about_as_fast_the_simpler_one_is_taken() -> None:
    near = TENSOR._replace(predicted=WHOLE.predicted / 2 / 1.04)
    assert Choices([WHOLE, near], {}, room=2e9).best is WHOLE
    faster = TENSOR._replace(predicted=WHOLE.predicted / 2 / 1.2)
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
    assert lines[0].split()[:5] == ["cluster.layout", "ms", "predicted", "ms", "measured"]
    assert lines[1].split() == ["{data:", "2}", "1,000.0", "-", "64", "1,000", "0.00", "64"]
    assert lines[3] == "not {data: 2, pipeline: 2}, {data: 1, pipeline: 4}: it cannot be traced"


def test_a_command_line_for_fewer_replicas_accumulates_the_batches_of_those_that_are_not_there() -> None:
    assert TENSOR._replace(batches=2).overrides == '"cluster.layout={data: 1, tensor: 2}" train.accumulation=2'


def test_only_layouts_that_fit_and_may_be_the_best_are_tried() -> None:
    slow = WHOLE._replace(layout=RankLayout(data=1, pipeline=2), predicted=2.1)
    choices = Choices([WHOLE, SHARDED, TENSOR._replace(rows=64), slow], {}, room=9e8)
    assert choices.worth_trying == []  # of those that fit, one is more than twice as fast as any other
    wide = choices._replace(room=2e9)
    assert [each.name for each in wide.worth_trying] == ["{data: 1, tensor: 2}", "{data: 2}"]
    many = Choices([WHOLE._replace(predicted=1 + number / 10) for number in range(9)], {}, room=2e9)
    assert [each.predicted for each in many.worth_trying] == [1.0, 1.1, 1.2, 1.3]


def test_what_was_measured_counts_and_not_what_was_predicted() -> None:
    choices = Choices([WHOLE, SHARDED, TENSOR._replace(rows=64)], {}, room=2e9)
    assert choices.best is choices.possible[2]
    tried = choices.replaced(choices.possible[2], choices.possible[2]._replace(measured=1.3))
    assert tried.best is tried.possible[2]  # the others were not tried
    both = tried.replaced(WHOLE, WHOLE._replace(measured=1.1))
    assert both.best == WHOLE._replace(measured=1.1)
    assert both.table.splitlines()[1].split()[2:5] == ["1,000.0", "1,100.0", "58"]


def test_a_layout_whose_try_failed_is_not_taken_and_has_the_reason() -> None:
    choices = Choices([WHOLE, SHARDED, TENSOR._replace(rows=64)], {}, room=2e9)
    failed = choices.replaced(choices.possible[2], "ranks failed when they tried it: killed")
    assert failed.best is WHOLE
    assert failed.table.splitlines()[-1] == "not {data: 1, tensor: 2}: ranks failed when they tried it: killed"
    none = failed.replaced(WHOLE, "killed").replaced(SHARDED, "killed")
    assert none.best is None
    reasons = "{data: 1, tensor: 2}: ranks failed when they tried it: killed; {data: 2}: killed"
    assert f"no layout works: {reasons}" in none.advice
