"""A replica's gradients of a batch."""

import torch
from torch.nn import functional

from sparkdl.data import Batch
from sparkdl.models import balance_losses
from sparkdl.models.experts import mixture_of_experts
from sparkdl.settings import Train
from sparkdl.training.recipes.losses import build_loss
from sparkdl.training.replica import back_propagate
from sparkdl.training.tasks import Classification


def test_a_step_adds_the_balance_loss_to_the_gradient_with_the_weight_of_the_rows() -> None:
    settings = Train()
    batch, task = Batch(torch.randn(12, 4), torch.arange(12) % 3, 24), Classification(3)
    gradients = []
    for balance in (0.0, 0.5):
        torch.manual_seed(0)
        network = mixture_of_experts(input_shape=(4,), num_classes=3, width=6, experts=5, balance=balance)
        figures = back_propagate(network, batch, settings, task, loss=build_loss(settings, task), row_weight=1 / 24)
        gradients.append(network[2].mixture.gate.weight.grad)
    with balance_losses() as found:
        logits = network(batch.inputs)
    torch.testing.assert_close(figures.loss, functional.cross_entropy(logits, batch.labels))
    (of_balance,) = torch.autograd.grad(found[0] * 12 / 24, network[2].mixture.gate.weight)
    torch.testing.assert_close(gradients[1] - gradients[0], of_balance)
