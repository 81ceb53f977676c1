"""The next token of a text."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch.nn import functional
from typing_extensions import override

from sparkdl.inputs.tensors import Inputs
from sparkdl.inputs.token_labels import NO_TOKEN, next_tokens, token_labels
from sparkdl.training.tasks.learning import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["LanguageModelling", "token_cross_entropy"]


class LanguageModelling(Task):
    """Predicts each token from those before it: outputs are logits of shape (n, length, vocabulary or more).

    Labels are the tokens of the rows, int64 of shape (n, length), -100 where a row has ended; the loss gets for each
    place the token behind it. A row counts in everything by its weight, the number of tokens that are predicted of it
    over that of a mean row, so that all tokens count alike: over ranks, and in a batch that has a short row.

    ``perplexity`` is e to the mean cross entropy of a token, in nats (Jelinek et al., 1977), and ``accuracy`` the share
    of tokens that have the largest logit.
    """

    name = "language_modelling"
    loss = "sparkdl.training.tasks.language_modelling:token_cross_entropy"
    best_by = "perplexity"
    step_figure = "accuracy"
    figure_names = ("perplexity", "accuracy")
    train_figures = ("accuracy",)
    sum_size = 1
    count_size = 1
    answer = pa.schema([("log_likelihood", pa.float64()), ("num_tokens", pa.int64()), ("perplexity", pa.float64())])

    def __init__(self, vocabulary: int) -> None:
        """``vocabulary`` is how many tokens there are."""
        self.outputs = vocabulary

    @override
    def targets(self, labels: torch.Tensor) -> torch.Tensor:
        return next_tokens(labels)

    @override
    def some_labels(self, inputs: Inputs) -> torch.Tensor:
        return token_labels(inputs)

    @override
    def measure(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The share of a row's tokens that are the likeliest ones."""
        targets = next_tokens(labels)
        right = ((outputs.argmax(dim=2) == targets) & (targets != NO_TOKEN)).sum(dim=1)
        return (right.double() / _counted(targets)).unsqueeze(1)

    @override
    def figures(self, sums: Sequence[float], weight: float) -> dict[str, float]:
        return {"accuracy": min(sums[0] / weight, 1.0)}

    @override
    def count(
        self, counts: torch.Tensor, outputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None
    ) -> None:
        """The mean cross entropy of each row's tokens."""
        by_row = token_cross_entropy(outputs.float(), next_tokens(labels), reduction="none").double()
        counts += (by_row if weights is None else by_row * weights).sum()

    @override
    def counted_figures(self, counts: NDArray[np.float64], weight: float) -> dict[str, float]:
        return {"perplexity": _exp(float(counts[0]) / weight)}

    @override
    def pictures(self, counts: NDArray[np.float64], class_names: Sequence[str]) -> "dict[str, Figure]":
        return {}

    @override
    def answers(self, outputs: torch.Tensor, label_names: pa.Array, *, top_k: int) -> list[pa.Array]:
        """Of texts: outputs are the log likelihood of each, and how many tokens that is of, float64 of shape (n, 2)."""
        likelihood, tokens = outputs.numpy().T
        perplexity = np.exp(np.minimum(-likelihood / tokens, np.log(np.finfo(np.float64).max)))
        return [pa.array(likelihood), pa.array(tokens.astype(np.int64)), pa.array(perplexity)]


def token_cross_entropy(
    outputs: torch.Tensor,
    targets: torch.Tensor,
    reduction: Literal["mean", "none"] = "mean",
    *,
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """The cross entropy of logits (n, length, vocabulary) to the tokens (n, length) that come next, in nats.

    The mean over all tokens, or over those of each row.
    """
    flat = functional.cross_entropy(
        outputs.flatten(0, 1),
        targets.flatten(),
        ignore_index=NO_TOKEN,
        reduction="none" if reduction == "none" else "mean",
        label_smoothing=label_smoothing,
    )
    return flat if reduction == "mean" else flat.view(targets.shape).sum(dim=1) / _counted(targets)


def _counted(targets: torch.Tensor) -> torch.Tensor:
    """How many tokens there are to predict in each row, one at least."""
    return (targets != NO_TOKEN).sum(dim=1).clamp(min=1)


def _exp(value: float) -> float:
    return math.exp(value) if value < math.log(np.finfo(np.float64).max) else math.inf
