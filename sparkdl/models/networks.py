"""A few well-known networks to start from.

Each function takes ``input_shape`` (without the batch) and ``num_classes``, and returns a module that maps float32
inputs to logits of shape (n, num_classes). Images have the shape (n, channels, height, width). None of the networks
normalises over the batch: the result for a row depends neither on the rows beside it nor on the number of ranks.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import torch
from torch import nn

from sparkdl.models.experts import mixture_of_experts

__all__ = ["NETWORKS", "NO_WORD", "WordVectors", "bag_of_words", "cnn", "lenet", "mlp", "resnet"]

NO_WORD = 0
"""The padding behind the numbers of a text's words."""
CACHED_BYTES = 2_500_000
"""The bytes of a feature map that a CPU core computes at a time: about the size of its second-level cache."""


def mlp(
    *, input_shape: Sequence[int], num_classes: int, hidden: Sequence[int] = (256, 128), dropout: float = 0.0
) -> nn.Module:
    """A multi-layer perceptron with ReLU; images are flattened."""
    features = 1
    for length in input_shape:
        features *= length
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise([features, *hidden]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
    layers.append(nn.Linear([features, *hidden][-1], num_classes))
    return nn.Sequential(*layers)


def cnn(
    *,
    input_shape: Sequence[int],
    num_classes: int,
    channels: Sequence[int] = (32, 64),
    hidden: int = 128,
    dropout: float = 0.0,
) -> nn.Module:
    """A small convolutional network: 3x3 convolutions, each followed by 2x2 max-pooling, and one hidden layer.

    If the last feature map is larger than 7x7, it is pooled to that size.
    """
    depth, height, width = _channels_first(input_shape)
    layers: list[nn.Module] = []
    largest = 0
    for inputs, outputs in pairwise([depth, *channels]):
        largest = max(largest, outputs * height * width)
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.MaxPool2d(2, ceil_mode=True), nn.ReLU()]
        height, width = -(-height // 2), -(-width // 2)
    small = height <= 7 and width <= 7
    height, width = min(height, 7), min(width, 7)
    layers += [nn.Identity() if small else nn.AdaptiveMaxPool2d((height, width)), nn.Flatten()]
    head: list[nn.Module] = [nn.Linear(channels[-1] * height * width, hidden), nn.ReLU()]
    if dropout:
        head.append(nn.Dropout(dropout))
    return nn.Sequential(_InPieces(layers, largest), *head, nn.Linear(hidden, num_classes))


def lenet(
    *,
    input_shape: Sequence[int],
    num_classes: int,
    channels: Sequence[int] = (6, 16),
    hidden: Sequence[int] = (120, 84),
) -> nn.Module:
    """LeNet-5 (LeCun et al., 1998) as it is used today: with max-pooling and ReLU; 61,706 weights for Fashion-MNIST.

    Two 5x5 convolutions, the first one padded, each followed by 2x2 pooling, and a multi-layer perceptron. Images must
    have at least 9x9 pixels.
    """
    depth, height, width = _channels_first(input_shape)
    if min(height, width) < 9:
        raise ValueError(f"this network reads images of 9x9 pixels or more, not of {height}x{width}; use 'cnn'")
    inner = -(-height // 2) - 4, -(-width // 2) - 4  # after the second convolution
    layers = [
        nn.Conv2d(depth, channels[0], 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(channels[0], channels[1], 5),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
    ]
    last = (channels[1], -(-inner[0] // 2), -(-inner[1] // 2))
    largest = max(channels[0] * height * width, channels[1] * inner[0] * inner[1])
    return nn.Sequential(_InPieces(layers, largest), mlp(input_shape=last, num_classes=num_classes, hidden=hidden))


def resnet(
    *, input_shape: Sequence[int], num_classes: int, channels: Sequence[int] = (32, 64, 128), blocks: int = 1
) -> nn.Module:
    """A small residual network (He et al., 2016, arXiv 1512.03385) with group normalisation.

    Group normalisation (Wu and He, 2018, arXiv 1803.08494) replaces the paper's batch normalisation. Each entry of
    ``channels`` is a stage of ``blocks`` basic blocks; every stage except the first halves the image.
    """
    depth, height, width = _channels_first(input_shape)
    layers: list[nn.Module] = [nn.Conv2d(depth, channels[0], 3, padding=1, bias=False), _norm(channels[0]), nn.ReLU()]
    previous = channels[0]
    largest = 0
    for stage, outputs in enumerate(channels):
        if stage:
            height, width = -(-height // 2), -(-width // 2)
        largest = max(largest, outputs * height * width)
        for block in range(blocks):
            layers.append(_BasicBlock(previous, outputs, stride=2 if stage and not block else 1))
            previous = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(_InPieces(layers, largest), nn.Linear(previous, num_classes))


def bag_of_words(
    *, num_classes: int, vocabulary: int = 1 << 18, width: int = 64, hidden: Sequence[int] = (), sparse: bool = False
) -> nn.Module:
    """The mean of a text's word vectors, and a multi-layer perceptron on it (Joulin et al., 2016, arXiv 1607.01759).

    Inputs have the shape (n, words of a text), and are numbers of words from 1 to ``vocabulary``; 0 is padding. With
    ``sparse``, the gradient of the vectors contains only the words of a batch; ``sgd`` without momentum, Adagrad and
    ``sparse_adam`` support that.
    """
    return nn.Sequential(
        WordVectors(vocabulary, width, sparse), mlp(input_shape=(width,), num_classes=num_classes, hidden=hidden)
    )


NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "lenet": lenet,
    "resnet": resnet,
    "bag_of_words": bag_of_words,
    "mixture_of_experts": mixture_of_experts,
}
"""The networks by their names in ``train.model``."""


class WordVectors(nn.Module):
    """The mean of the vectors of a text's words, the first layer of a bag of words; zeros for a text without words."""

    def __init__(self, vocabulary: int, width: int, sparse: bool) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(vocabulary + 1, width, mode="mean", sparse=sparse, padding_idx=NO_WORD)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """The vectors (n, width) for numbers of words of shape (n, words of a text), in any type."""
        mean: torch.Tensor = self.table(words.long())
        return mean


class _InPieces(nn.Module):
    """Layers that a CPU computes for a few rows at a time, so that the values between them stay in its cache.

    Steps take less time, and ranks on one host, which share its memory bandwidth, slow each other down less. Only for
    layers that treat rows independently, unlike batch normalisation. ``largest`` is the number of values in a row's
    largest feature map.
    """

    def __init__(self, layers: Iterable[nn.Module], largest: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.rows = max(1, CACHED_BYTES // (4 * largest))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if images.device.type != "cpu" or torch.compiler.is_compiling():
            answer: torch.Tensor = self.layers(images)
            return answer
        return torch.cat([self.layers(piece) for piece in images.split(self.rows * torch.get_num_threads())])


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions, and the input added to their result."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            _norm(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            _norm(outputs),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), _norm(outputs))
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.residual(images) + self.shortcut(images))


def _norm(channels: int) -> nn.Module:
    """Group normalisation with eight channels per group, or with one group if eight does not divide the channels."""
    return nn.GroupNorm(channels // 8 if channels % 8 == 0 else 1, channels)


def _channels_first(input_shape: Sequence[int]) -> tuple[int, int, int]:
    """The channels, height and width of an image's shape. Raises ``ValueError`` for the shape of a vector."""
    if len(input_shape) != 3:
        raise ValueError(
            f"this network reads images of shape (channels, height, width), not inputs of shape {tuple(input_shape)};"
            " use 'mlp' for vectors"
        )
    depth, height, width = input_shape
    return depth, height, width
