"""Parts of a model made of other parts of it, whoever had them."""

import pytest
import torch

from sparkdl.layouts import ModelPart, Region, Slices, fill, room_for, with_room

WHOLE = {"wide": torch.randn(7, 3), "narrow": torch.randn(2)}
SHAPES = {name: tuple(tensor.shape) for name, tensor in WHOLE.items()}


def taken(region: Region, whole: torch.Tensor) -> torch.Tensor:
    return whole.index_select(region.dim, region.indices)


def parts_of(ranks: int) -> list[ModelPart]:
    """By rank, with what the optimizer keeps of the wide one, the number of its steps and a mean that ranks have not
    agreed on.
    """
    slices = Slices(SHAPES, ranks)
    parts = []
    for rank in range(ranks):
        regions = slices.regions(rank)
        tensors = {name: taken(regions[name], whole) for name, whole in WHOLE.items()}
        moments = {"wide@exp_avg": tensors["wide"] * 2, "wide@step": torch.tensor(5.0)}
        parts.append((regions, tensors | moments | {"mean": torch.tensor([float(rank)])}))
    return parts


@pytest.mark.parametrize("before", [1, 3, 9])
@pytest.mark.parametrize("after", [1, 2, 5])
def test_slices_of_any_number_of_ranks_are_made_of_those_of_any_other(before: int, after: int) -> None:
    for rank in range(after):
        regions, parts = Slices(SHAPES, after).regions(rank), parts_of(before)
        found, others = room_for(regions, SHAPES, WHOLE), dict[str, object]()
        rest = fill(found, regions, SHAPES, with_room(parts, found, others, regions, SHAPES, SHAPES))
        for name, region in regions.items():
            assert torch.equal(found[name], taken(region, WHOLE[name]))
        assert torch.equal(found["wide@exp_avg"], taken(regions["wide"], 2 * WHOLE["wide"]))
        assert others == {"wide@step": torch.tensor(5.0)}
        assert rest["mean"] == (before - 1) / 2


def test_columns_in_any_order_make_the_whole() -> None:
    order = torch.tensor([2, 0, 1])
    parts = [({"wide": Region(1, some)}, {"wide": WHOLE["wide"][:, some]}) for some in order.split(2)]
    found = room_for({}, {"wide": (7, 3)}, WHOLE)
    fill(found, {}, {"wide": (7, 3)}, parts)
    assert torch.equal(found["wide"], WHOLE["wide"])


def test_the_whole_is_a_part_like_others() -> None:
    regions = Slices(SHAPES, 3).regions(1)
    found = room_for(regions, SHAPES, WHOLE)
    fill(found, regions, SHAPES, [({}, WHOLE)])
    assert torch.equal(found["wide"], WHOLE["wide"][3:6]) and torch.equal(found["narrow"], WHOLE["narrow"][1:2])
