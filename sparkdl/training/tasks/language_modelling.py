"""Language modelling: predicting the next token of a text."""

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

    Labels are the tokens of the rows, int64 of shape (n, length), and -100 after the end of a row. The target at each
    position is the next token. A row's weight is the number of its predicted tokens divided by the mean of all rows, so
    that all tokens count equally on all ranks, and in batches with short rows.

    ``perplexity`` is e to the power of the mean cross entropy per token in nats (Jelinek et al., 1977). ``accuracy`` is
    the share of tokens that have the largest logit.
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
        """``vocabulary`` is the number of different tokens."""
        self.outputs = vocabulary

    @override
    def targets(self, labels: torch.Tensor) -> torch.Tensor:
        return next_tokens(labels)

    @override
    def some_labels(self, inputs: Inputs) -> torch.Tensor:
        return token_labels(inputs)

    @override
    def measure(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The share of a row's tokens that are predicted as the likeliest."""
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
        """Add the mean cross entropy of each row's tokens, times the row's weight."""
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
        """Log likelihood, number of tokens and perplexity of texts; ``outputs`` has the first two, float64 (n, 2)."""
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
    """The cross entropy in nats of logits (n, length, vocabulary) and the next tokens ``targets`` (n, length).

    Returns the mean over all tokens, or with the reduction "none" the mean over the tokens of each row.
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
    """The number of tokens to predict in each row, at least 1."""
    return (targets != NO_TOKEN).sum(dim=1).clamp(min=1)


def _exp(value: float) -> float:
    return math.exp(value) if value < math.log(np.finfo(np.float64).max) else math.inf
