"""What is predicted where a network is to tell the next token: the tokens that it is given. Runs anywhere."""

import torch

from sparkdl.inputs.tensors import Inputs

__all__ = ["NO_TOKEN", "next_tokens", "token_labels"]

NO_TOKEN = -100
"""Stands for no token to predict: what PyTorch's losses leave out unless told otherwise."""


def token_labels(inputs: Inputs) -> torch.Tensor:
    """The tokens of the only input and its mask, as labels: int64 (n, length), :data:`NO_TOKEN` where rows have ended.

    They are what transformers' networks for causal language modelling call ``labels``.
    """
    assert isinstance(inputs, dict)
    tokens, mask = inputs.values()
    return tokens.masked_fill(~mask, NO_TOKEN)


def next_tokens(labels: torch.Tensor) -> torch.Tensor:
    """For each place the token behind it, of the same shape; :data:`NO_TOKEN` where there is none."""
    none = labels.new_full((len(labels), 1), NO_TOKEN)
    return torch.cat([labels[:, 1:], none], dim=1)
