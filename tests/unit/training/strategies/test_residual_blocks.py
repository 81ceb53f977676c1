"""Which blocks of a residual network are dealt, and what a network without some of them is."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.models.networks import cnn, mlp, resnet
from sparkdl.training.strategies.residual_blocks import BLOCKS, check_blocks, choose_blocks, cut_blocks, let_skip
from sparkdl.training.strategies.sub_networks import overwrite, tensors_of

IMAGES = torch.zeros(2, 1, 8, 8)
FOUND = ["0.layers.3", "0.layers.4", "0.layers.6"]
"""The second block of each stage, and the first one of the first stage: the others halve the image."""


def network() -> nn.Module:
    torch.manual_seed(0)
    return resnet(input_shape=(1, 8, 8), num_classes=3, channels=(8, 16), blocks=2)


class WithNorm(nn.Module):
    """A block that normalises first, as transformers do, and whose input is a text of vectors."""

    def __init__(self, width: int, scale: nn.Module | None = None) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = scale or nn.Identity()

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = words + self.scale(self.down(torch.relu(self.up(self.norm(words)))))
        return answer


def test_blocks_that_keep_the_shape_are_found() -> None:
    assert choose_blocks(network()) == FOUND
    assert choose_blocks(nn.Sequential(nn.Linear(3, 8), WithNorm(8), WithNorm(8), nn.Linear(8, 2))) == ["1", "2"]
    assert choose_blocks(network(), FOUND[1:]) == FOUND[1:]


def test_blocks_that_add_nothing_at_first_are_found_one_by_one() -> None:
    blocks = nn.Sequential(WithNorm(8), WithNorm(8))
    for block in blocks:
        nn.init.zeros_(block.down.weight)
        nn.init.zeros_(block.down.bias)
    assert choose_blocks(nn.Sequential(nn.Linear(3, 8), blocks, nn.Linear(8, 2))) == ["1.0", "1.1"]


def test_looking_for_blocks_changes_neither_the_network_nor_what_is_drawn_afterwards() -> None:
    model, state = network(), torch.get_rng_state()
    before = copy.deepcopy(model.state_dict())
    check_blocks(model, IMAGES, None, ranks=3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state) and model.training


def test_a_sub_network_has_its_blocks_with_larger_last_layers_and_values_pass_by_the_others() -> None:
    model = network().eval()
    alone = copy.deepcopy(model)
    for name in FOUND[:1] + FOUND[2:]:
        alone.set_submodule(name, nn.Identity())
    last = alone.get_submodule(f"{FOUND[1]}.residual.4")
    last.weight.data *= 3
    last.bias.data *= 3
    cuts, own = cut_blocks(model, FOUND, ranks=3), {BLOCKS: torch.tensor([1])}
    whole = {name: tensors_of(model)[name].detach() for name in cuts}
    images = torch.rand(2, 1, 8, 8)
    let_skip(model, FOUND)
    expected = alone(images)
    whole_answer = model(images)
    overwrite(model, {name: cut.take(whole[name], own) for name, cut in cuts.items()})
    assert torch.equal(model(images), expected) and not torch.equal(whole_answer, expected)
    assert torch.equal(copy.deepcopy(model)(images), expected)
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert numbers == sum(parameter.numel() for parameter in alone.parameters())


def test_cutting_and_putting_together_gives_every_number_back() -> None:
    model = nn.Sequential(nn.Linear(4, 8), WithNorm(8), WithNorm(8, nn.BatchNorm1d(8)), nn.Linear(8, 2)).double()
    cuts = cut_blocks(model, ["1", "2"], ranks=2)
    whole = {name: tensors_of(model)[name].detach() for name in cuts}
    together = {name: torch.zeros_like(value) for name, value in whole.items()}
    for block in range(2):
        own = {BLOCKS: torch.tensor([block])}
        for name, cut in cuts.items():
            part = cut.take(whole[name], own)
            assert tuple(part.shape) == cut.shape(whole[name], own)
            cut.put(part, together[name], own)
    assert all(torch.equal(together[name], value) for name, value in whole.items())


class Apart(nn.Module):
    """A network that looks into its block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(4, 8), nn.ModuleList([WithNorm(8), WithNorm(8)]), nn.Linear(8, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        values = self.first(rows)
        for block in self.blocks:
            values = block(values) + block.down.bias
        answer: torch.Tensor = self.last(values)
        return answer


class Added(nn.Module):
    """A network that adds what its blocks return to their inputs by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        values = self.first(rows)
        for block in self.blocks:
            values = values + block(values)
        answer: torch.Tensor = self.last(values)
        return answer


def test_blocks_whose_output_the_network_adds_to_their_input_can_be_named() -> None:
    model, names = Added().eval(), ["blocks.0", "blocks.1"]
    check_blocks(model, ROWS, names, ranks=2)
    let_skip(model, names)
    overwrite(model, {f"{name}.0.weight": torch.empty(0, 8) for name in names})
    rows = torch.rand(2, 4)
    assert torch.equal(model(rows), model.last(model.first(rows)))


ROWS = torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("make", "rows", "blocks", "says"),
    [
        (lambda: cnn(input_shape=(1, 8, 8), num_classes=3), IMAGES, None, r"has none: .*train\.model=resnet"),
        (
            lambda: mlp(input_shape=(4,), num_classes=3, hidden=(4, 4)),
            ROWS,
            ["1", "3"],
            "at least one of them is not bypassed",
        ),
        (lambda: mlp(input_shape=(4,), num_classes=3, hidden=(8, 4)), ROWS, ["1"], r"'1' is not a residual.*are none$"),
        (
            network,
            IMAGES,
            ["0.layers.5"],
            "'0.layers.5' is not a residual block.*are 0.layers.3, 0.layers.4, 0.layers.6$",
        ),
        (network, IMAGES, ["0.layers.99"], "'0.layers.99' is not a residual block"),
        (network, IMAGES, FOUND[:1], r"has 1 residual blocks to deal to 2 ranks \(0.layers.3\)"),
        (Apart, ROWS, None, "cannot be computed without its residual blocks"),
    ],
)
def test_what_cannot_be_dealt_is_an_error(
    make: Callable[[], nn.Module], rows: torch.Tensor, blocks: list[str] | None, says: str
) -> None:
    with pytest.raises(ModelError, match=says):
        check_blocks(make(), rows, blocks, ranks=2)
