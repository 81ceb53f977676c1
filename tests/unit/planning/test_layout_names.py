"""What layouts are called."""

from sparkdl.planning.layout_names import layout_name, layout_setting, sharing_name
from sparkdl.settings import RankLayout


def test_a_layout_is_named_by_the_axes_that_share_the_network() -> None:
    assert layout_name(RankLayout(data=4)) == "{data: 4}"
    assert layout_name(RankLayout(data=2, tensor=3, pipeline=2)) == "{data: 2, tensor: 3, pipeline: 2}"


def test_one_with_a_plan_is_named_by_the_first_layer_that_is_cut() -> None:
    layout = RankLayout(tensor=2, plan={"8": "colwise", "10": "rowwise"})
    assert layout_name(layout) == "{data: 1, tensor: 2} from 8 on"
    assert layout_setting(layout) == "{data: 1, tensor: 2, plan: {'8': colwise, '10': rowwise}}"
    assert sharing_name(layout) == "tensor: 2 from 8 on"
    assert sharing_name(RankLayout(data=2)) == "whole replicas"
