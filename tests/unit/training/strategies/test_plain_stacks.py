"""Which networks may lie in parts, and how these are drawn."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from sparkdl.data import Dataset
from sparkdl.errors import ModelError
from sparkdl.layouts import fill, room_for
from sparkdl.models.networks import bag_of_words
from sparkdl.settings import Train
from sparkdl.training.checks.tried_model import check_model
from sparkdl.training.network_to_train import build_hollow_model, build_model
from sparkdl.training.strategies import plain_stacks
from sparkdl.training.strategies.plain_stacks import draw_parts, layers_of, ownership_of


def settings_for(model: str | Callable[..., nn.Module] = "mlp", **options: object) -> Train:
    return Train(model=model, model_options=options, strategy={"kind": "ist", "sharded": True}, seed=5)


@pytest.mark.parametrize(
    "settings",
    [settings_for(hidden=[17, 13]), settings_for("bag_of_words", vocabulary=52, width=17, hidden=[13])],
    ids=["mlp", "bag of words"],
)
def test_parts_are_drawn_as_the_whole_network_is(
    clouds: Dataset, settings: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_stacks, "DRAWN_BYTES", 100)  # a few rows at a time
    hollow = build_hollow_model(clouds, settings)
    ownership = ownership_of(hollow, seed=settings.seed, ranks=3)
    pieces = [
        (ownership.regions(neurons), draw_parts(hollow, ownership, neurons, seed=settings.seed))
        for neurons in ownership.owners(0)
    ]
    drawn = room_for({}, ownership.shapes, pieces[0][1])
    drawn |= fill(drawn, {}, ownership.shapes, pieces)
    expected = build_model(clouds, settings).state_dict()
    assert drawn.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(drawn[name].float(), value)


@pytest.mark.parametrize(
    "settings",
    [
        settings_for(hidden=[1_000_000, 1_000_000]),
        settings_for("bag_of_words", vocabulary=100_000, width=10_000_000, sparse=True),
    ],
    ids=["mlp", "bag of words"],
)
def test_a_network_larger_than_any_memory_is_checked_and_has_its_size(clouds: Dataset, settings: Train) -> None:
    network = check_model(clouds, settings, ranks=4)
    assert sum(parameter.nbytes for parameter in network.parameters()) > 4e12


def with_norm(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*input_shape, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, num_classes))


def with_an_end(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*input_shape, 8), nn.ReLU(), nn.Linear(8, num_classes), nn.Tanh())


def drawn_otherwise(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    network = nn.Sequential(nn.Linear(*input_shape, 8), nn.ReLU(), nn.Linear(8, num_classes))
    nn.init.zeros_(network[2].bias)
    return network


def drawn_in_another_order(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    last = nn.Linear(8, num_classes)
    return nn.Sequential(nn.Linear(*input_shape, 8), nn.ReLU(), last)


def with_vectors_drawn_otherwise(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    network = bag_of_words(num_classes=num_classes, vocabulary=8, width=6)
    nn.init.normal_(network[0].table.weight, std=0.1)
    return network


def with_vectors_of_answers(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(*input_shape, 8), bag_of_words(num_classes=num_classes, vocabulary=8, width=6))


def sharing(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    again = nn.Linear(8, 8)
    return nn.Sequential(nn.Linear(*input_shape, 8), again, nn.ReLU(), again, nn.Linear(8, num_classes))


def with_normed_weights(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    first = nn.utils.weight_norm(nn.Linear(*input_shape, 8))
    return nn.Sequential(first, nn.ReLU(), nn.Linear(8, num_classes))


def test_an_activation_may_stand_in_a_network_twice() -> None:
    activation = nn.Tanh()
    layers = layers_of(nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 6), activation, nn.Linear(6, 2)))
    assert [name for name, _ in layers] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (with_norm, "'1' is a LayerNorm"),
        (with_an_end, "the last layer must be a torch.nn.Linear, but '3' is not"),
        (sharing, "two layers share theirs"),
        (with_normed_weights, "'0' is a Linear whose weights are made from others"),
        (drawn_otherwise, "the network initialises them in another way"),
        (with_vectors_drawn_otherwise, "the network initialises them in another way"),
        (with_vectors_of_answers, "'1.0' is a WordVectors"),
        (drawn_in_another_order, "the network initialises them in another way"),
        (with_norm((4,), 4), "already has its weight '0.weight'"),
        (lambda: nn.Linear(4, 4), "the network has none: it needs at least two layers"),
        (lambda: nn.Bilinear(4, 4, 4), "'the network' is a Bilinear"),
    ],
)
def test_a_network_that_cannot_lie_in_parts_is_an_error_before_anything_starts(
    clouds: Dataset, model: Callable[..., nn.Module] | nn.Module, says: str
) -> None:
    with pytest.raises(ModelError, match=says):
        check_model(clouds, settings_for(model), ranks=2)


def test_too_few_neurons_and_wrong_outputs_are_told_as_of_whole_networks(clouds: Dataset) -> None:
    with pytest.raises(ModelError, match=r"'3' has 3 neurons to deal to 4 ranks"):
        check_model(clouds, settings_for(hidden=[8, 3]), ranks=4)
    with pytest.raises(ModelError, match=r"returned \(2, 5\) for two rows"):
        check_model(clouds, settings_for(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5))), ranks=2)
