"""The log likelihood of texts under a network that predicts the next token. Runs anywhere."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from sparkdl.data.ragged import Ragged
from sparkdl.data.reading.collating import named_tensors
from sparkdl.errors import DataError
from sparkdl.inputs.tensors import answer, moved
from sparkdl.inputs.token_labels import NO_TOKEN, next_tokens, token_labels
from sparkdl.models import logits_of
from sparkdl.scoring.named_columns import NamedColumns

__all__ = ["log_likelihoods"]

_LOGITS = 1 << 26
"""About the most logits per forward pass, 256 MiB: there is one per position and token of the vocabulary."""


def log_likelihoods(network: nn.Module, texts: NamedColumns, *, batch_size: int, device: str) -> torch.Tensor:
    """Each text's log likelihood, in nats, and the number of its tokens: float64 of shape (n, 2), in the CPU's memory.

    The first token is predicted from the end-of-text token. A text that is longer than the blocks in training is read
    in windows of a block's length. Each window begins with the last token of the one before, so that every token is
    predicted once: the rolling log likelihood of lm-evaluation-harness
    (https://github.com/EleutherAI/lm-evaluation-harness). Raises :class:`DataError`, with their number, if some texts
    have no finite likelihood.
    """
    ((name, spec),) = texts.specs.items()
    values = texts.values[name]
    assert isinstance(values, Ragged) and spec.end_of_text is not None
    windows, owners = _windows(values, spec.end_of_text, max(spec.shape[0], 2))
    found = torch.zeros(len(texts), 2, dtype=torch.float64)
    found[:, 1] = torch.from_numpy(values.lengths)
    rows = min(batch_size, max(_LOGITS // ((spec.vocabulary or 1) * spec.shape[0]), 1))
    order = np.argsort(windows.lengths, kind="stable")
    with torch.inference_mode():
        for start in range(0, len(order), rows):
            some = order[start : start + rows]
            inputs = named_tensors({name: windows.take(some)}, texts.specs)
            targets = next_tokens(token_labels(inputs)).to(device)
            logits = logits_of(answer(network, moved(inputs, device))).float()
            losses = functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), ignore_index=NO_TOKEN, reduction="none"
            )
            of_windows = losses.view(targets.shape).double().sum(dim=1).cpu()
            found[:, 0].index_add_(0, torch.from_numpy(owners[some]), of_windows, alpha=-1)
    if bad := int((~found[:, 0].isfinite()).sum()):
        raise DataError(f"input {name!r}: {bad} texts have no finite likelihood; the network answers NaN or infinity")
    return found


def _windows(texts: Ragged, end: int, length: int) -> tuple[Ragged, NDArray[np.int64]]:
    """The windows of all texts, of which each text begins with the token ``end``, and the text of each window."""
    begun = np.insert(texts.values, texts.offsets[:-1], end)
    offsets = texts.offsets + np.arange(texts.rows + 1)
    step = length - 1
    counts = -(-texts.lengths // step)
    owners = np.repeat(np.arange(texts.rows), counts)
    number = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = offsets[owners] + number * step
    lengths = np.minimum(begins + length, offsets[owners + 1]) - begins
    ends = np.concatenate([[0], np.cumsum(lengths)])
    places = np.arange(ends[-1]) + np.repeat(begins - ends[:-1], lengths)
    return Ragged(begun[places], ends), owners
