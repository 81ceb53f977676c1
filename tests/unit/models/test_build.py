import pytest
import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.models import build
from sparkdl.models.networks import NETWORKS

OF_IMAGES = [name for name in NETWORKS if name != "bag_of_words"]  # which reads numbers of words


@pytest.mark.parametrize("name", OF_IMAGES)
@pytest.mark.parametrize("shape", [(28, 28, 1), (9, 13, 3), (64, 48, 3)])
def test_every_network_reads_images_of_any_size(name: str, shape: tuple[int, ...]) -> None:
    network = build(name, input_shape=shape, num_classes=7)
    images = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    assert network(images).shape == (3, 7)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_a_rank_without_rows_still_takes_its_step(name: str) -> None:
    network = build(name, input_shape=(12, 12, 1), num_classes=2)
    network(torch.empty(0, 12, 12, 1, dtype=torch.uint8)).sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())


@pytest.mark.parametrize("name", OF_IMAGES)
def test_a_row_is_answered_the_same_whatever_stands_beside_it(name: str) -> None:
    network = build(name, input_shape=(12, 12, 1), num_classes=4)
    images = torch.randint(0, 256, (8, 12, 12, 1), dtype=torch.uint8)
    torch.testing.assert_close(network(images)[3:4], network(images[3:4]), rtol=1e-4, atol=1e-5)


def test_images_are_scaled_and_standardised_per_channel() -> None:
    first = build(nn.Flatten(), input_shape=(1, 1, 2), num_classes=2, mean=[0.5, 0.2], std=[0.25, 0.5])
    answer = first(torch.tensor([[[[255, 51]]]], dtype=torch.uint8))
    torch.testing.assert_close(answer, torch.tensor([[2.0, 0.0]]))


def test_a_channel_that_never_changes_does_not_become_nan() -> None:
    first = build(nn.Flatten(), input_shape=(1, 1, 1), num_classes=1, mean=[0.0], std=[0.0])
    assert first(torch.zeros(1, 1, 1, 1, dtype=torch.uint8)).item() == 0


def test_vectors_are_read_as_they_are() -> None:
    network = build("mlp", input_shape=(5,), num_classes=3, options={"hidden": [8]})
    assert network(torch.rand(2, 5)).shape == (2, 3)


def test_building_leaves_the_network_in_training() -> None:
    assert build("mlp", input_shape=(5,), num_classes=3, options={"dropout": 0.5}).training


def test_a_vector_in_an_image_network_is_told_what_to_use() -> None:
    with pytest.raises(ModelError, match="use 'mlp' for vectors"):
        build("cnn", input_shape=(5,), num_classes=3)
