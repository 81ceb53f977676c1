"""Checks that a network returns logits of the right shape for two rows. Runs on driver and ranks."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sparkdl.errors import ModelError
from sparkdl.inputs.tensors import Inputs, answer, like, moved, shapes_of
from sparkdl.models.modes import in_mode
from sparkdl.models.outputs import LOGITS, check_answer, logits_of
from sparkdl.models.user_network import name_of

__all__ = ["try_network"]


def try_network(
    network: nn.Module, model: str | Callable[..., Any], rows: Inputs, num_classes: int, *, by_token: bool = False
) -> None:
    """Check with two rows that a network returns one logit per class. Its mode (training or evaluation) is restored.

    With ``by_token``, it must return one logit for each position and token, of which there are ``num_classes``; more
    are allowed, because some networks have more tokens than their tokeniser.

    Raises :class:`ModelError`, which names the model as the user does.
    """
    name = name_of(model)
    try:
        with in_mode(network, training=False), torch.no_grad():
            answered = answer(network, moved(rows, _device(network)))
    except Exception as error:
        raise ModelError(
            f"the model {name!r} failed on two rows of shape {shapes_of(like(rows, lambda each: each[0]))}:"
            f" {type(error).__name__}: {error}{_about_ids(error, rows)}"
        ) from error
    check_answer(answered, [LOGITS], name)
    logits = logits_of(answered)
    if by_token:
        _check_tokens(logits, rows, num_classes, name)
    elif logits.shape != (2, num_classes):
        raise ModelError(
            f"the model {name!r} returned {tuple(logits.shape)} for two rows, but the labels have {num_classes}"
            f" classes: its output must have the shape (n, {num_classes})"
        )


def _check_tokens(logits: torch.Tensor, rows: Inputs, vocabulary: int, name: str) -> None:
    """Raise :class:`ModelError` unless there are logits for all tokens at each position of the rows."""
    assert isinstance(rows, dict)
    length = next(iter(rows.values())).shape[1]
    if logits.ndim != 3 or logits.shape[:2] != (2, length):
        raise ModelError(
            f"the model {name!r} returned {tuple(logits.shape)} for two rows of {length} tokens, but language modelling"
            f" needs logits for the token after each of them: its output must have the shape (n, {length},"
            f" {vocabulary})"
        )
    if logits.shape[2] < vocabulary:
        raise ModelError(
            f"the model {name!r} returns logits for {logits.shape[2]:,} tokens, but the dataset's tokeniser has"
            f" {vocabulary:,}; prepare the dataset with the network's own tokeniser (`tokenizer`), or build the network"
            " for so many tokens"
        )


def _about_ids(error: Exception, rows: Inputs) -> str:
    """A hint for an index out of range: probably ids for which a table of embeddings has too few rows."""
    if not isinstance(error, IndexError) or not isinstance(rows, dict):
        return ""
    ids = {key: int(each.max()) for key, each in rows.items() if each.dtype == torch.int64}
    told = ", ".join(f"those of {key} go up to {largest:,}" for key, largest in ids.items())
    return f". Has a table of embeddings fewer rows than there are ids, or places? {told}" if told else ""


def _device(network: nn.Module) -> torch.device:
    """The device of the network's first weight."""
    weight = next(iter(network.parameters()), None)
    return torch.device("cpu") if weight is None else weight.device
