"""Which part of a network ranks compute for different rows, and that they then find the network's own gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparkdl.layouts import TensorPlan, exchanged_bytes
from sparkdl.models import networks
from sparkdl.settings import RankLayout
from sparkdl.training.checks.shared_replicas import tried_plan

IMAGES = torch.zeros(2, 3, 12, 12)


def plan_of(network: nn.Module, ranks: int = 2) -> TensorPlan:
    plan = tried_plan(network, IMAGES, RankLayout(tensor=ranks), batch_size=2)
    assert isinstance(plan, TensorPlan)
    return plan


def wide(inputs: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(inputs, 33), nn.ReLU(inplace=True), nn.Linear(33, 21), nn.ReLU(), nn.Linear(21, 4)]


def alexnet() -> nn.Module:
    """Its layers, in small (Krizhevsky et al., 2012)."""
    first = nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(inplace=True), nn.LocalResponseNorm(5), nn.MaxPool2d(2)
    second = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(2)
    return nn.Sequential(*first, *second, *wide(32))


class Images(nn.Module):
    """Convolutions, what may be changed in a test, and wide layers."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.enter, self.norm = nn.Conv2d(3, 8, 3, padding=1), norm or nn.GroupNorm(2, 8)
        self.block = networks._BasicBlock(8, 8, stride=2)
        self.wide, self.leave = nn.Linear(8 * 36, 33), nn.Linear(33, 4)

    def front(self, images: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.block(self.norm(self.enter(images)))
        return values.flatten(1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.leave(self.wide(self.front(images)).relu())
        return answer


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(
    "network",
    [
        networks.lenet(input_shape=(3, 12, 12), num_classes=4),
        networks.cnn(input_shape=(3, 12, 12), num_classes=4),
        networks.cnn(input_shape=(3, 12, 12), num_classes=4, channels=[8]),  # smaller windows would pool to 7 x 7
        alexnet(),
        Images(),
        Images(nn.Dropout(0.0)),
    ],
    ids=["lenet", "cnn", "shallow", "alexnet", "residual", "without dropout"],
)
def test_convolutions_and_what_follows_up_to_wide_layers_are_computed_by_row(network: nn.Module, ranks: int) -> None:
    plan = plan_of(network, ranks)
    columns = plan.blocks[0].columns[0]
    names = [name for name, _ in network.named_parameters()]
    assert plan.front == tuple(names[: names.index(f"{columns}.weight")])


class Centred(nn.Module):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images - images.mean(dim=0)


class Counting(nn.Module):
    """Keeps a mean over rows, and answers what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(images.detach().mean(dim=(0, 2, 3)))
        return images


class AroundTheBlock(Images):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = self.front(images)
        answer: torch.Tensor = self.leave(self.wide(values).relu()) + values[:, :4]
        return answer


class InputsBehind(Images):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = super().forward(images) + images.mean(dim=(1, 2, 3)).unsqueeze(1)
        return answer


class WeightsBehind(Images):
    def forward(self, images: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = super().forward(images) * self.enter.weight.mean()
        return answer


class Penalised(Images):
    """What only weights are computed from is used on the way and behind it."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        scale = self.enter.bias.square().sum()
        answer: torch.Tensor = self.leave(self.wide(self.front(images) * scale).relu()) + scale
        return answer


class RowsFirst(Images):
    """Says how many rows there are at the beginning, and uses it at the end."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        count = images.shape[0]
        answer: torch.Tensor = super().forward(images)
        return answer.reshape(count, -1)


class OneImage(Images):
    """Takes the rows of a batch for channels of a single image."""

    def front(self, images: torch.Tensor) -> torch.Tensor:
        mixed = functional.conv2d(images.mean(dim=1), torch.ones(2, 2, 1, 1) * self.enter.bias.mean())
        return super().front(images + mixed.unsqueeze(1))


@pytest.mark.parametrize(
    "network",
    [
        *(Images(nn.BatchNorm2d(8)), Images(nn.Dropout(0.1)), Images(Centred()), Images(Counting())),
        *(AroundTheBlock(), InputsBehind(), WeightsBehind(), Penalised(), RowsFirst(), OneImage()),
        nn.Sequential(*wide(3 * 144)),
        nn.Sequential(nn.Flatten(), nn.Linear(3 * 144, 9), nn.LayerNorm(9), *wide(9)[1:]),
    ],
    ids=[
        *("batch norm", "dropout", "mean over rows", "running mean", "passed by", "inputs behind", "weights behind"),
        *("penalty", "rows counted before", "rows as channels", "no convolution", "one layer"),
    ],
)
def test_what_does_not_depend_on_single_rows_alone_is_computed_for_all_rows(network: nn.Module) -> None:
    plan = plan_of(network)
    assert plan.blocks and not plan.front


class Tokens(nn.Module):
    """Attention over the pixels of an image, and wide layers."""

    def __init__(self, *, dropout: float) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(3, 1, 5, dropout=dropout, batch_first=True)
        self.wide, self.leave = nn.Linear(3 * 144, 33), nn.Linear(33, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = self.block(images.flatten(2).transpose(1, 2)).flatten(1)
        answer: torch.Tensor = self.leave(self.wide(values).relu())
        return answer


def test_blocks_before_a_given_plan_are_computed_by_row_if_they_can_be() -> None:
    layout = RankLayout(tensor=2, plan={"wide": "colwise", "leave": "rowwise"})
    plans = [tried_plan(Tokens(dropout=dropout), IMAGES, layout, batch_size=2) for dropout in (0.0, 0.1)]
    by_row, for_all = (plan for plan in plans if isinstance(plan, TensorPlan))
    assert len(by_row.front) == 12 and all(name.startswith("block.") for name in by_row.front)
    assert by_row.blocks == for_all.blocks and not for_all.front


def test_each_rank_exchanges_its_share_of_what_wide_layers_are_given() -> None:
    network, rows = alexnet(), torch.zeros(5, 3, 12, 12)  # two of them for the largest of three ranks
    found = exchanged_bytes(network, plan_of(network, 3), rows)
    assert found.shares == [2 * 32 * 4] * 2  # there, and back
    assert found.sums == [5 * 21 * 4]
    assert exchanged_bytes(network, plan_of(network, 3)._replace(front=()), rows).sums == [5 * 21 * 4, 5 * 32 * 4]
