"""What a rank is said to hold in a step."""

import pytest
import torch
from torch import nn

from sparkdl.planning.memory import memory_of_rank
from sparkdl.settings import Train

WIDTH, LAYERS, ROWS = 64, 6, torch.rand(2, 64)
LAYER = (WIDTH + 1) * WIDTH * 4  # bytes


def network() -> nn.Module:
    return nn.Sequential(*(each for _ in range(LAYERS) for each in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))


def settings(shard: str | None = None, **changes: object) -> Train:
    return Train(**{"strategy": {"kind": "allreduce", "shard": shard}, "optimizer": "adam", **changes})


def test_a_rank_alone_holds_weights_gradients_moments_and_what_layers_answer() -> None:
    found = memory_of_rank(network(), ROWS, settings(), ranks=1, batch=10)
    assert (found.weights, found.gradients, found.moments) == (LAYERS * LAYER, LAYERS * LAYER, 2 * LAYERS * LAYER)
    assert found.travelling == 0
    answers = 10 * WIDTH * 4
    assert LAYERS * answers <= found.activations <= 2 * LAYERS * answers
    assert found.total == pytest.approx(4 * LAYERS * LAYER + found.activations)


@pytest.mark.parametrize(("shard", "together"), [("optimizer", LAYERS + 3), ("all", 6)])
def test_in_shards_it_holds_its_share_and_a_few_layers_that_come_together(shard: str, together: int) -> None:
    whole = memory_of_rank(network(), ROWS, settings(), ranks=1, batch=10)
    found = memory_of_rank(network(), ROWS, settings(shard), ranks=4, batch=10)
    for kind in ("weights", "gradients", "moments"):
        assert getattr(found, kind) == getattr(whole, kind) / 4
    assert found.travelling == together * LAYER


def test_the_optimizer_decides_how_much_it_keeps_and_what_is_frozen_has_no_gradients() -> None:
    assert memory_of_rank(network(), ROWS, settings(optimizer="sgd"), ranks=1, batch=1).moments == 0
    momentum = settings(optimizer="sgd", optimizer_options={"momentum": 0.9})
    assert memory_of_rank(network(), ROWS, momentum, ranks=1, batch=1).moments == LAYERS * LAYER
    frozen = network()
    frozen[0].requires_grad_(False)
    found = memory_of_rank(frozen, ROWS, settings(), ranks=1, batch=1)
    assert (found.weights, found.gradients) == (LAYERS * LAYER, (LAYERS - 1) * LAYER)


def test_the_network_stays_as_it_was() -> None:
    frozen = network().eval()
    memory_of_rank(frozen, ROWS, settings(), ranks=4, batch=10)
    assert not frozen.training and all(parameter.grad is None for parameter in frozen.parameters())
