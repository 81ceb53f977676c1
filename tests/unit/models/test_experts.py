"""Mixtures of experts: what they answer, by a plain loop over rows, and the loss that balances their gates."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparkdl.models import MixtureOfExperts, balance_losses

WIDTH, EXPERTS = 6, 5


@pytest.fixture
def layer() -> MixtureOfExperts:
    torch.manual_seed(0)
    return MixtureOfExperts(WIDTH, EXPERTS, hidden=7)


def by_loop(layer: MixtureOfExperts, row: torch.Tensor) -> torch.Tensor:
    """The sum of two experts, by the definition."""
    scores = layer.gate.weight @ row
    best = sorted(range(EXPERTS), key=lambda expert: -scores[expert].item())[:2]
    parts = layer.experts
    answers = [
        parts.down[each] @ torch.relu(parts.up[each] @ row + parts.up_bias[each]) + parts.down_bias[each]
        for each in best
    ]
    first, second = torch.softmax(scores[best], dim=0)
    return first * answers[0] + second * answers[1]


def test_each_row_is_answered_by_the_two_experts_that_the_gate_prefers(layer: MixtureOfExperts) -> None:
    rows = torch.randn(9, WIDTH)
    expected = torch.stack([by_loop(layer, row) for row in rows])
    torch.testing.assert_close(layer(rows), expected)
    parameters = list(layer.parameters())
    ours, theirs = (torch.autograd.grad(each.square().sum(), parameters) for each in (layer(rows), expected))
    torch.testing.assert_close(ours, theirs)


def test_the_vectors_of_a_sequence_go_to_experts_of_their_own(layer: MixtureOfExperts) -> None:
    sequences = torch.randn(3, 4, WIDTH)
    torch.testing.assert_close(layer(sequences).flatten(0, 1), layer(sequences.flatten(0, 1)))


def test_more_experts_than_there_are_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="`top` is 3, but there are 2 experts"):
        MixtureOfExperts(WIDTH, 2, 7, top=3)


def test_the_balance_loss_is_collected_in_training_alone(layer: MixtureOfExperts) -> None:
    rows = torch.randn(20, WIDTH)
    with balance_losses() as found:
        layer(rows)
        layer.eval()(rows)
    scores = rows @ layer.gate.weight.T
    shares = functional.one_hot(scores.topk(2).indices.flatten(), EXPERTS).float().mean(dim=0)
    expected = 0.01 * EXPERTS * (shares * scores.softmax(dim=-1).mean(dim=0)).sum()
    torch.testing.assert_close(found, [expected])


def test_the_balance_loss_is_smallest_where_experts_are_chosen_equally_often() -> None:
    layer = MixtureOfExperts(2, 2, 3, top=1, balance=1.0)
    nn.init.eye_(layer.gate.weight)
    one, other = torch.tensor([[8.0, 0.0]]), torch.tensor([[0.0, 8.0]])
    with balance_losses() as found:
        layer(torch.cat([one, other]))
        layer(torch.cat([one, one]))
    assert [each.item() for each in found] == pytest.approx([1.0, 2.0], rel=1e-3)
