"""How networks are cut into sub-networks, and which networks can be."""

import pytest
import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.models.networks import bag_of_words, cnn, mlp, resnet
from sparkdl.training.strategies.sub_networks import (
    Cut,
    choose_layers,
    count_neurons,
    deal,
    find_cuts,
    overwrite,
    tensors_of,
)
from sparkdl.training.strategies.symmetry import check_sub_networks


def stack() -> nn.Module:
    """Convolutions with batch normalisation and a slope for each channel, then two hidden layers."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.PReLU(6), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 7, 3, padding=1, bias=False), nn.BatchNorm2d(7), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1)),
        *(nn.Linear(7 * 4 * 4, 9), nn.Tanh(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3)),
    )


IMAGES = torch.zeros(2, 1, 8, 8)


def cut_up(model: nn.Module) -> tuple[dict[str, Cut], dict[str, int]]:
    cuts = find_cuts(model, choose_layers(model))
    return cuts, count_neurons(cuts, tensors_of(model))


@pytest.mark.parametrize("size", [1, 3, 5])
def test_each_round_deals_every_neuron_of_each_layer_to_one_rank(size: int) -> None:
    counts = {"first": 11, "second": 5}
    for number in range(3):
        shares = deal(counts, size=size, seed=7, number=number)
        for layer, count in counts.items():
            assert sorted(torch.cat([share[layer] for share in shares]).tolist()) == list(range(count))
            sizes = [len(share[layer]) for share in shares]
            assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


def test_seed_and_round_alone_decide_what_is_dealt() -> None:
    def first(seed: int, number: int) -> list[int]:
        return deal({"layer": 100}, size=2, seed=seed, number=number)[0]["layer"].tolist()

    assert first(-3, 5) == first(-3, 5)
    assert len({tuple(first(seed, number)) for seed in (-3, 0, 1) for number in range(3)}) == 9


def test_layers_of_one_size_are_dealt_independently() -> None:
    (share, _) = deal({"first": 50, "second": 50}, size=2, seed=0, number=0)
    assert share["first"].tolist() != share["second"].tolist()


def test_a_sub_network_has_its_own_size_and_is_a_network() -> None:
    model = stack()
    cuts, counts = cut_up(model)
    whole = {name: tensors_of(model)[name].detach() for name in cuts}
    own = deal(counts, size=3, seed=0, number=0)[0]
    overwrite(model, {name: cut.take(whole[name], own) for name, cut in cuts.items()})
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert shapes["0.weight"] == (2, 1, 3, 3) and shapes["1.running_var"] == shapes["2.weight"] == (2,)
    assert shapes["4.weight"] == (3, 2, 3, 3)
    assert shapes["9.weight"] == (3, 3 * 16) and shapes["9.bias"] == (3,)
    assert shapes["11.weight"] == (3, 3) and shapes["13.weight"] == (3, 3) and shapes["13.bias"] == (3,)
    model(torch.randn(4, 1, 8, 8)).sum().backward()
    assert all(parameter.grad.shape == parameter.shape for parameter in model.parameters())


def test_what_reads_fewer_neurons_is_larger_so_that_its_sum_stays() -> None:
    whole = torch.full((4, 6), 0.5)
    part = Cut("this", "before").take(whole, {"this": torch.tensor([1, 2]), "before": torch.tensor([0, 3])})
    assert part.tolist() == [[1.5, 1.5], [1.5, 1.5]]


def test_of_an_embedding_a_sub_network_has_some_numbers_of_each_vector() -> None:
    model = bag_of_words(num_classes=3, vocabulary=20, width=6)
    cuts, counts = cut_up(model)
    assert counts == {"0.table": 6}
    table = tensors_of(model)["0.table.weight"].detach()
    own = torch.tensor([1, 4])
    assert torch.equal(cuts["0.table.weight"].take(table, {"0.table": own}), table[:, own])
    assert cuts["1.1.weight"] == Cut(None, "0.table") and "1.1.bias" not in cuts


def test_cutting_and_putting_together_gives_every_weight_back() -> None:
    model = stack().double()
    cuts, counts = cut_up(model)
    whole = {name: tensors_of(model)[name].detach() for name in cuts}
    together = {name: value.clone() for name, value in whole.items()}
    for own in deal(counts, size=2, seed=0, number=0):
        for name, cut in cuts.items():
            cut.put(cut.take(together[name], own), together[name], own)
    for name, value in whole.items():
        torch.testing.assert_close(together[name], value, rtol=1e-15, atol=0)
        if not cuts[name].columns or counts[cuts[name].columns] % 2 == 0:  # scaled by a power of two, or not at all
            assert torch.equal(together[name], value)


def test_a_round_trains_all_weights_but_those_between_neurons_of_different_ranks() -> None:
    model = stack()
    cuts, counts = cut_up(model)
    trained = {name: torch.zeros(tensors_of(model)[name].shape) for name in cuts}
    for own in deal(counts, size=3, seed=0, number=0):
        for name, cut in cuts.items():
            cut.put(torch.ones(cut.shape(trained[name], own)), trained[name], own)
    for name, values in trained.items():
        part = float((values != 0).float().mean())
        assert part == pytest.approx(1 / 3, abs=0.05) if cuts[name].rows and cuts[name].columns else part == 1


@pytest.mark.parametrize(
    ("model", "rows"),
    [
        (mlp(input_shape=(5,), num_classes=3, hidden=(8, 6), dropout=0.2), torch.zeros(2, 5)),
        (cnn(input_shape=(1, 8, 8), num_classes=3), IMAGES),
        (stack(), IMAGES),
        (bag_of_words(num_classes=3, vocabulary=20, width=7, hidden=(6,)), torch.zeros(2, 5)),
        (bag_of_words(num_classes=3, vocabulary=20, width=7), torch.zeros(2, 5)),
    ],
)
def test_hidden_layers_of_plain_stacks_are_found(model: nn.Module, rows: torch.Tensor) -> None:
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_sub_networks(model, rows, None, ranks=3)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Residual(nn.Module):
    """Two blocks whose inner channels alone are read by one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
                *(nn.Conv2d(6, 4, 3, padding=1), nn.BatchNorm2d(4)),
            )
            for _ in range(2)
        )
        self.last = nn.Linear(4, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        values = self.stem(images)
        for block in self.blocks:
            values = torch.relu(values + block(values))
        answer: torch.Tensor = self.last(values.mean((2, 3)))
        return answer


def test_of_residual_blocks_the_error_names_the_layers_that_can_be_dealt() -> None:
    with pytest.raises(ModelError, match=r"set train\.strategy\.layers to .*: blocks\.0\.0, blocks\.1\.0$"):
        check_sub_networks(Residual(), IMAGES, None, ranks=2)
    check_sub_networks(Residual(), IMAGES, ["blocks.0.0", "blocks.1.0"], ranks=2)


class ReadTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.last = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        hidden = self.hidden(rows)
        return self.last(hidden) + hidden[:, :3]


class WrittenIn(ReadTwice):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.last(self.hidden(rows).view(len(rows), 6))
        return answer


@pytest.mark.parametrize(
    ("model", "rows", "layers", "says"),
    [
        (nn.Linear(5, 3), torch.zeros(2, 5), None, "the network has none"),
        (mlp(input_shape=(5,), num_classes=3), torch.zeros(2, 5), ["9"], "'9' is not a hidden layer.*has 1, 3$"),
        (mlp(input_shape=(5,), num_classes=3, hidden=(8, 3)), torch.zeros(2, 5), None, "'3' has 3 neurons.* 4 ranks"),
        (ReadTwice(), torch.zeros(2, 5), None, "not true for hidden; .*there are none"),
        (WrittenIn(), torch.zeros(2, 5), None, "1/4 of the neurons cannot be computed: RuntimeError: shape"),
        (resnet(input_shape=(1, 8, 8), num_classes=3), IMAGES, None, "there are none"),
    ],
)
def test_what_cannot_be_dealt_is_an_error(
    model: nn.Module, rows: torch.Tensor, layers: list[str] | None, says: str
) -> None:
    with pytest.raises(ModelError, match=says):
        check_sub_networks(model, rows, layers, ranks=4)
