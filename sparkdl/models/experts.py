"""Mixtures of experts: a gate sends each row to a few of many small networks, the experts.

Shazeer et al., 2017, "Outrageously Large Neural Networks: The Sparsely-Gated Mixture-of-Experts Layer" (arXiv
1701.06538). The number of weights grows with the number of experts, but the computation per row does not.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from math import prod, sqrt

import torch
from torch import nn
from torch.nn import functional

__all__ = ["Experts", "MixtureOfExperts", "balance_losses", "mixture_of_experts"]

_losses: ContextVar[list[torch.Tensor] | None] = ContextVar("balance_losses", default=None)


def mixture_of_experts(
    *,
    input_shape: Sequence[int],
    num_classes: int,
    width: int = 128,
    layers: int = 1,
    experts: int = 8,
    hidden: int = 256,
    top: int = 2,
    balance: float = 0.01,
) -> nn.Module:
    """A linear layer to ``width``, mixtures of experts with residual connections, and logits; images are flattened.

    Each of the ``layers`` is a :class:`MixtureOfExperts` with the other options.
    """
    stack: list[nn.Module] = [nn.Flatten(), nn.Linear(prod(input_shape), width)]
    stack += [_Residual(MixtureOfExperts(width, experts, hidden, top=top, balance=balance)) for _ in range(layers)]
    return nn.Sequential(*stack, nn.LayerNorm(width), nn.Linear(width, num_classes))


@contextmanager
def balance_losses() -> Iterator[list[torch.Tensor]]:
    """Collects the balance losses (scalars) of all layers that are called in this context in training mode.

    Runs anywhere. :func:`sparkdl.train` adds them to the loss; your own training loop has to do so itself.
    """
    found: list[torch.Tensor] = []
    token = _losses.set(found)
    try:
        yield found
    finally:
        _losses.reset(token)


class MixtureOfExperts(nn.Module):
    """A layer from (..., width) to (..., width): each vector goes to ``top`` experts; the result is their weighted sum.

    The gate is linear; the weights are the softmax of its ``top`` largest values. Experts have no capacity limit, so
    the result for a row does not depend on the rows beside it.

    Without a balance loss, a gate comes to prefer a few experts. The loss in :func:`balance_losses` is ``balance``
    times the number of experts times the sum, over experts, of the share of choices times the mean probability of the
    expert (Switch Transformer: Fedus et al., 2021, arXiv 2101.03961, section 2.2). It equals ``balance`` if all experts
    are chosen equally often. Shares and probabilities are those of a rank's batch, or, with experts that are spread
    over ranks (``cluster.layout.experts``), of all ranks' batches together.
    """

    def __init__(self, width: int, experts: int, hidden: int, *, top: int = 2, balance: float = 0.01) -> None:
        """``hidden``: the neurons of an expert."""
        super().__init__()
        if not 1 <= top <= experts:
            raise ValueError(f"`top` is {top}, but there are {experts} experts; choose from 1 to {experts}")
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = Experts(experts, width, hidden)
        self.top, self.balance = top, balance

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Maps floating-point values of shape (..., width) to the same shape."""
        vectors = values.flatten(0, -2)
        scores = self.gate(vectors)
        best, chosen = scores.topk(self.top, dim=-1)
        chosen = chosen.flatten()
        # Positions in the order of experts, by counting, because ONNX has no stable sort.
        chosen_by = functional.one_hot(chosen, self.gate.out_features)
        counts = chosen_by.sum(dim=0)
        earlier = (chosen_by.cumsum(dim=0) * chosen_by).sum(dim=1) - 1
        places = earlier + (counts.cumsum(dim=0) - counts)[chosen]
        order = torch.zeros_like(places).scatter(0, places, torch.ones_like(places).cumsum(dim=0) - 1)
        answers, counts = self.experts(vectors.repeat_interleave(self.top, dim=0)[order], counts)
        by_vector = answers[places].unflatten(0, (-1, self.top))
        self._tell_balance(scores, counts)
        answer: torch.Tensor = (by_vector * best.softmax(dim=-1).unsqueeze(-1)).sum(dim=1)
        return answer.view_as(values)

    def _tell_balance(self, scores: torch.Tensor, counts: torch.Tensor) -> None:
        """Give the balance loss to who collects it."""
        losses = _losses.get()
        if self.training and self.balance and losses is not None:
            shares = counts / counts.sum()
            probabilities = scores.float().softmax(dim=-1).mean(dim=0)
            losses.append(self.balance * len(counts) * (shares * probabilities).sum())


class Experts(nn.Module):
    """So many networks of one hidden layer with ReLU, each of which has some rows of a batch."""

    def __init__(self, count: int, width: int, hidden: int) -> None:
        super().__init__()
        self.up = _uniform(count, hidden, width, inputs=width)
        self.up_bias = _uniform(count, hidden, inputs=width)
        self.down = _uniform(count, width, hidden, inputs=hidden)
        self.down_bias = _uniform(count, width, inputs=hidden)

    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The outputs for rows of shape (n, width), and the number of rows of the step for each expert.

        Rows are in the order of experts; ``counts`` is the number of rows of each expert.
        """
        of_expert = zip(rows.split(counts.tolist()), self.up, self.up_bias, self.down, self.down_bias, strict=True)
        answers = [
            functional.linear(functional.relu(functional.linear(own, up, up_bias)), down, down_bias)
            for own, up, up_bias, down, down_bias in of_expert
        ]
        return torch.cat(answers), counts


class _Residual(nn.Module):
    """A residual connection around a layer whose input is normalised."""

    def __init__(self, layer: MixtureOfExperts) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(layer.gate.in_features)
        self.mixture = layer

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = values + self.mixture(self.norm(values))
        return answer


def _uniform(*shape: int, inputs: int) -> nn.Parameter:
    """Weights with the initial distribution of ``torch.nn.Linear``, for this number of inputs per neuron."""
    bound = 1 / sqrt(inputs)
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))
