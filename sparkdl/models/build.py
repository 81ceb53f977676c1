"""Builds a network with a single input, from a name, an import path or a callable, and adds a layer for images."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.models.answer_check import try_network
from sparkdl.models.recommenders import RECOMMENDERS
from sparkdl.models.user_network import make_network, name_of

__all__ = ["ScaledImages", "build", "build_without_weights"]


def build(
    model: str | Callable[..., Any],
    *,
    input_shape: Sequence[int],
    num_classes: int,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """Build a network for inputs of this shape, and try it on a batch of zeros. Runs on driver and ranks.

    ``model`` is a name from :data:`sparkdl.models.networks.NETWORKS`, an import path ``package.module:callable``, a
    callable that returns a module, or a module, which is copied with its weights. A callable is called with
    ``options``, and with ``input_shape`` and ``num_classes`` if it has arguments of these names.

    An ``input_shape`` of (height, width, channels) means images: the result reads uint8 (n, height, width, channels),
    and its first layer converts them to float32 (n, channels, height, width), scaled to [0, 1] and, if ``mean`` and
    ``std`` per channel are given, standardised. The network gets the shape (channels, height, width) as
    ``input_shape``. Any other shape is read as float32 (n, *input_shape).

    Raises :class:`ModelError` if the model cannot be found or built, or does not return (n, num_classes).
    """
    network = _assembled(model, input_shape, num_classes, mean, std, options or {}, device=None)
    dtype = torch.uint8 if len(input_shape) == 3 else torch.float32
    try_network(network, model, torch.zeros(2, *input_shape, dtype=dtype), num_classes)
    return network


def build_without_weights(
    model: str | Callable[..., Any],
    *,
    input_shape: Sequence[int],
    num_classes: int,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    options: Mapping[str, Any] | None = None,
) -> nn.Module:
    """The same network on PyTorch's device ``meta``: its weights have shapes, but take no memory. It is not tried.

    Runs on driver and ranks. Raises :class:`ModelError` if the model cannot be found or built, or is a module that
    already has weights.
    """
    network = _assembled(model, input_shape, num_classes, mean, std, options or {}, device="meta")
    if made := [name for name, parameter in network.named_parameters() if not parameter.is_meta]:
        raise ModelError(
            f"the model {name_of(model)!r} already has its weight {made[0]!r}; a sharded network must be built by a"
            " function that makes new weights"
        )
    return network


def _assembled(
    model: str | Callable[..., Any],
    input_shape: Sequence[int],
    num_classes: int,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    options: Mapping[str, Any],
    *,
    device: str | None,
) -> nn.Module:
    """The user's network behind a layer that scales images, with weights on ``device``."""
    if isinstance(model, str) and model in RECOMMENDERS:
        raise ModelError(f"the model {model!r} needs named inputs; prepare the dataset with `inputs`")
    images = len(input_shape) == 3
    shape = (input_shape[2], input_shape[0], input_shape[1]) if images else tuple(input_shape)
    with torch.device(device) if device else nullcontext():
        network = make_network(model, {"input_shape": shape, "num_classes": num_classes}, options)
    return nn.Sequential(ScaledImages(shape[0], mean=mean, std=std), network) if images else network


class ScaledImages(nn.Module):
    """uint8 (n, height, width, channels) to float32 (n, channels, height, width) in [0, 1], standardised on request."""

    def __init__(
        self, channels: int, *, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
    ) -> None:
        super().__init__()
        centre = torch.zeros(channels) if mean is None else torch.tensor(mean, dtype=torch.float32)
        spread = torch.ones(channels) if std is None else torch.tensor(std, dtype=torch.float32)
        if centre.shape != (channels,) or spread.shape != (channels,):
            raise ModelError(
                f"images of {channels} channels need {channels} means and standard deviations,"
                f" got {centre.numel()} and {spread.numel()}"
            )
        spread = torch.where(spread > 0, spread, torch.ones(channels))  # constant channels are not scaled
        # (x/255 - mean) / std as one multiplication and one addition per value.
        self.scale: torch.Tensor
        self.shift: torch.Tensor
        self.register_buffer("scale", (1 / (255 * spread)).view(1, -1, 1, 1))
        self.register_buffer("shift", (-centre / spread).view(1, -1, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The batch as float32 of shape (n, channels, height, width)."""
        return torch.addcmul(self.shift, images.permute(0, 3, 1, 2).to(self.scale.dtype), self.scale)
