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


def agreed_buffers(rank: Rank) -> list[torch.Tensor]:
    """The buffers of a network after ranks have agreed that have seen something else each."""
    network = nn.BatchNorm1d(2)
    network.running_mean.fill_(rank.rank)
    network.num_batches_tracked.fill_(7 - rank.rank)
    network.register_buffer("mask", torch.ones(1, 2, dtype=torch.bool).expand(3, 2), persistent=False)
    with HorovodCollectives() as collectives:
        create_strategy("allreduce", collectives).agree(network)
    return list(network.buffers())


def test_ranks_agree_on_all_buffers_also_where_there_is_no_mean() -> None:
    for mean, _, seen, mask in run_local(agreed_buffers, 2):
        assert mean.tolist() == [0.5, 0.5]
        assert seen.item() == 7
        assert mask.all()
