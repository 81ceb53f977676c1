"""One step of one replica, on a real rank."""

import pytest
import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import HorovodCollectives
from sparkdl.data import Batch
from sparkdl.settings import Train
from sparkdl.training.replica import Replica
from sparkdl.training.strategies import create_strategy


def clipped_step(rank: Rank) -> float:
    """How far the weights of an embedding with sparse gradients go in a step with a rate of 1."""
    words = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten())
    before = words[0].weight.detach().clone()
    settings = Train(optimizer="sgd", clip_norm=0.01)
    with HorovodCollectives() as collectives:
        replica = Replica(words, settings, create_strategy("allreduce", collectives), torch.device("cpu"))
        batch = Batch(torch.tensor([[1], [5]]), torch.tensor([0, 3]), 2)
        replica.step([batch], rate=1.0)
    return float((words[0].weight.detach() - before).norm())


def test_sparse_gradients_are_clipped_on_one_rank_as_on_several() -> None:
    assert run_local(clipped_step, 1)[0] == pytest.approx(0.01, rel=1e-4)
