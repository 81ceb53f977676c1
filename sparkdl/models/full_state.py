"""The whole state of a network: what its ``state_dict`` has, and the buffers that are left out of it.

``register_buffer(..., persistent=False)`` leaves a buffer out of a ``state_dict``, though training may change it, as it
does a running mean. What was saved without it would be another network than the one that was evaluated.

Of a network whose own weights stay as they were built, beside adapters, these are no part of its state.
"""

from collections.abc import Collection, Mapping

import torch
from torch import nn

__all__ = ["full_state", "leave_out_of_state", "load_full_state"]

LEFT_OUT = "_sparkdl_left_out"
"""The attribute of a network that names the parameters which are no part of its state."""


def full_state(network: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and all buffers by name, the very tensors. Runs anywhere."""
    kept = network.state_dict()
    left_out = getattr(network, LEFT_OUT, ())
    whole = kept | _passing(network, kept)
    return {name: tensor for name, tensor in whole.items() if name not in left_out} if left_out else whole


def leave_out_of_state(network: nn.Module, names: Collection[str]) -> None:
    """Say which parameters are no part of a network's state from now on: those that are built anew, and never trained.

    Runs anywhere.
    """
    setattr(network, LEFT_OUT, frozenset(names))


def load_full_state(network: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Put back what :func:`full_state` gave. Runs anywhere.

    Older files have no buffers that a ``state_dict`` leaves out: these then stay as they are. Such a buffer takes the
    shape that it had, which a forward pass may have made. Raises ``RuntimeError`` as ``load_state_dict`` does.
    """
    own = network.state_dict()
    passing = _passing(network, own)
    kept = {name: own[name] for name in getattr(network, LEFT_OUT, ())}
    network.load_state_dict(kept | {name: value for name, value in state.items() if name not in passing})
    for name, buffer in passing.items():
        value = state.get(name)
        if value is None:
            continue
        if value.shape == buffer.shape:
            buffer.detach().copy_(value)
        else:
            owner, _, key = name.rpartition(".")
            setattr(network.get_submodule(owner), key, value.to(buffer, copy=True))


def _passing(network: nn.Module, kept: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The buffers that a ``state_dict`` leaves out."""
    buffers = network.named_buffers(remove_duplicate=False)
    return {name: buffer.detach() for name, buffer in buffers if name not in kept}
