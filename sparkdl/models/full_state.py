"""The full state of a network: its ``state_dict``, and the buffers that are not in it.

``register_buffer(..., persistent=False)`` excludes a buffer from the ``state_dict``, even if training changes it, as it
does a running mean. Without it, the saved network would differ from the one that was evaluated.

The frozen weights of a network with adapters are not part of its state.
"""

from collections.abc import Collection, Mapping

import torch
from torch import nn

__all__ = ["full_state", "leave_out_of_state", "load_full_state"]

LEFT_OUT = "_sparkdl_left_out"
"""The attribute of a network with the names of parameters that are not part of its state."""


def full_state(network: nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and all buffers by name: the tensors themselves, not copies. Runs anywhere."""
    kept = network.state_dict()
    left_out = getattr(network, LEFT_OUT, ())
    whole = kept | _passing(network, kept)
    return {name: tensor for name, tensor in whole.items() if name not in left_out} if left_out else whole


def leave_out_of_state(network: nn.Module, names: Collection[str]) -> None:
    """Exclude parameters from a network's state from now on: those that are rebuilt each time, and never trained.

    Runs anywhere.
    """
    setattr(network, LEFT_OUT, frozenset(names))


def load_full_state(network: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Restore the result of :func:`full_state`. Runs anywhere.

    Older files lack the buffers that are not in a ``state_dict``: these stay unchanged then. Such a buffer gets the
    saved shape, because a forward pass may have changed it. Raises ``RuntimeError`` as ``load_state_dict`` does.
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
    """The buffers that are not in the ``state_dict``."""
    buffers = network.named_buffers(remove_duplicate=False)
    return {name: buffer.detach() for name, buffer in buffers if name not in kept}
