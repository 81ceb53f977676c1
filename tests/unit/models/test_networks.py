"""The networks to start from: what a CPU computes at a time, and that it changes no answer."""

import pytest
import torch
from torch import nn

from sparkdl.cluster import limited_threads
from sparkdl.models.networks import CACHED_BYTES, NETWORKS

CONVOLUTIONAL = ["cnn", "lenet", "resnet"]


def _largest_piece(network: nn.Module, images: torch.Tensor) -> int:
    """The bytes of the largest feature map that a layer of the network returns for these images."""
    sizes = []
    for layer in network.modules():
        if not list(layer.children()):
            layer.register_forward_hook(lambda _module, _inputs, answer: sizes.append(answer.nbytes))
    network(images)
    return max(sizes)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
@pytest.mark.parametrize("channels", [(32, 64), (4, 128)])
def test_a_cpu_computes_feature_maps_that_its_cores_caches_hold(name: str, channels: tuple[int, ...]) -> None:
    network = NETWORKS[name](input_shape=(3, 23, 19), num_classes=5, channels=channels)
    row = _largest_piece(network, torch.rand(1, 3, 23, 19))
    with limited_threads(2):
        assert _largest_piece(network, torch.rand(300, 3, 23, 19)) == 2 * (CACHED_BYTES // row * row)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_pieces_of_a_batch_give_the_answers_and_gradients_of_the_whole(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name](input_shape=(1, 16, 16), num_classes=5).double()
    images = torch.rand(7, 1, 16, 16, dtype=torch.float64)
    results = []
    for rows in (7, 3):
        network[0].rows = rows
        network.zero_grad()
        with limited_threads(1):
            answer = network(images)
        answer.square().sum().backward()
        results.append([answer.detach(), *(parameter.grad for parameter in network.parameters())])
    torch.testing.assert_close(*results)


def test_lenet_has_the_weights_of_lenet_5_and_wants_images_that_two_convolutions_leave_something_of() -> None:
    network = NETWORKS["lenet"](input_shape=(1, 28, 28), num_classes=10)
    assert sum(weight.numel() for weight in network.parameters()) == 61_706
    with pytest.raises(ValueError, match="9x9 pixels or more, not of 28x8; use 'cnn'"):
        NETWORKS["lenet"](input_shape=(1, 28, 8), num_classes=10)


def test_a_bag_of_words_is_the_mean_of_its_word_vectors_however_long_the_text_is() -> None:
    vectors, scores = NETWORKS["bag_of_words"](num_classes=3, vocabulary=10, width=2, sparse=True)
    texts = torch.tensor([[3.0, 10.0, 0.0], [0.0, 0.0, 0.0]])
    table = vectors.table.weight
    torch.testing.assert_close(vectors(texts), torch.stack([(table[3] + table[10]) / 2, torch.zeros(2)]))
    scores(vectors(texts)).sum().backward()
    assert table.grad.is_sparse and set(table.grad.coalesce().indices().flatten().tolist()) <= {0, 3, 10}
