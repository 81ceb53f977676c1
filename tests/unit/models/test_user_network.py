"""What a user calls a model, and the network that it makes."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.models import build


def test_what_is_trained_is_a_copy_of_the_callers_module() -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    trained = build(network, input_shape=(3,), num_classes=2)
    torch.testing.assert_close(trained.state_dict(), network.state_dict())
    before = network[1].weight.detach().clone()  # type: ignore[operator]
    with torch.no_grad():
        trained[1].weight.zero_()  # type: ignore[operator, index, union-attr]
    torch.testing.assert_close(network[1].weight, before)


@pytest.mark.parametrize("computed", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
def test_a_module_with_computed_weights_is_copied_too(computed: Callable[[nn.Module], nn.Module]) -> None:
    network = nn.Sequential(computed(nn.Linear(3, 2)))
    rows = torch.rand(4, 3)
    torch.testing.assert_close(build(network, input_shape=(3,), num_classes=2)(rows), network(rows))


def test_an_import_path_and_a_callable_are_called_with_what_they_take() -> None:
    by_path = build("sparkdl.models.networks:mlp", input_shape=(5,), num_classes=3, options={"hidden": ()})
    by_call = build(lambda num_classes: nn.Linear(5, num_classes), input_shape=(5,), num_classes=3)
    assert by_path(torch.rand(2, 5)).shape == by_call(torch.rand(2, 5)).shape == (2, 3)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("mpl", "no model named 'mpl'; it must be one of mlp, cnn, lenet, resnet"),
        ("nowhere.at_all:net", "cannot import the model 'nowhere.at_all:net'"),
        ("sparkdl.models.networks:net", "has no 'net'"),
        ("sparkdl.models.networks:NETWORKS", "is a dict"),
        (lambda: "not a module", "returned a str, not a torch.nn.Module"),
    ],
)
def test_what_is_no_model_is_told_apart(model: object, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        build(model, input_shape=(5,), num_classes=3)  # type: ignore[arg-type]


def test_an_unknown_option_names_those_there_are() -> None:
    with pytest.raises(ModelError, match="takes no option 'width'; its options are hidden, dropout"):
        build("mlp", input_shape=(5,), num_classes=3, options={"width": 5})
