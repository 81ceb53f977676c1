"""``jobs/benchmark.py layouts``: what it measures of a layout, and what its table says."""

from functools import partial

from torch import nn

from benchmarks.layout_subjects import Layout, Measured, Network
from benchmarks.layouts import LAYOUTS, measure, report


def build(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


SHARDS = "allreduce, shard: all", "fully_shard by hand"
SIZES = "ranks", "tensor", "pipeline"
SMALL = Network("small", partial(build, 16), rows=8, width=16)


def test_shards_cut_layers_and_stages_end_with_the_loss_of_one_process_as_those_by_hand() -> None:
    names = (
        "one process",
        "tensor: 4",
        "parallelize_module by hand, 4",
        "pipeline: 4",
        "Schedule1F1B by hand, 4",
        *SHARDS,
    )
    chosen = [layout for layout in LAYOUTS if layout.name in names]
    layouts = [each._replace(**{key: min(2, getattr(each, key)) for key in SIZES}) for each in chosen]
    assert len(layouts) == len(names)
    found = [(SMALL, layout, measure(SMALL, layout, steps=8)) for layout in layouts]
    table = report(found)
    assert max(float(row[3]) for row in table.rows) < 1e-5
    assert all(measured.milliseconds > 0 for _, _, measured in found)


def test_a_layout_that_holds_more_than_predicted_or_is_slower_than_by_hand_misses_its_target() -> None:
    alone = (SMALL, Layout("one process", 1), Measured(2.0, 10.0, 1e6))
    shards = (SMALL, Layout("shards", 2, "all"), Measured(2.1, 12.0, 1e9))
    by_hand = (SMALL, Layout("by hand", 2, "all", by_hand=True), Measured(2.0, 10.0, 1e6))
    assert [target.reached for target in report([alone, shards, by_hand]).targets] == [False, False, False]
