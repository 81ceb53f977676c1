"""One step of one replica, on a real rank."""

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Backend, agree, create_backend
from sparkdl.data import Batch
from sparkdl.settings import Train
from sparkdl.training.groups import Groups
from sparkdl.training.replica import Replica
from sparkdl.training.tasks import Classification

BACKEND = create_backend("auto")


def clipped_step(rank: Rank) -> float:
    """How far the weights of an embedding with sparse gradients go in a step with a rate of 1."""
    words = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten())
    before = words[0].weight.detach().clone()
    settings = Train(optimizer="sgd", clip_norm=0.01)
    with BACKEND.connect() as collectives:
        replica = Replica(words, settings, Classification(4), Groups(collectives, collectives), torch.device("cpu"))
        batch = Batch(torch.tensor([[1], [5]]), torch.tensor([0, 3]), 2 * collectives.size)
        replica.step([batch], rate=1.0)
        assert words[0].weight.grad.is_sparse
    return float((words[0].weight.detach() - before).norm())


def test_sparse_gradients_are_clipped_on_one_rank_as_on_several() -> None:
    for size in (1, 2):
        assert run_local(clipped_step, size, backend=BACKEND) == [pytest.approx(0.01, rel=1e-4)] * size


def stepped_with_sparse_gradients(rank: Rank) -> dict[str, torch.Tensor]:
    """By optimizer: the vectors after two steps, of which the second has another word."""
    found = {}
    with BACKEND.connect() as collectives:
        for name, options in SPARSE.items():
            words = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten())
            nn.init.ones_(words[0].weight)
            settings = Train(**{"optimizer": name, "weight_decay": 0.0, **options})
            replica = Replica(words, settings, Classification(4), Groups(collectives, collectives), torch.device("cpu"))
            for word in (1, 5):
                replica.step([Batch(torch.tensor([[word]]), torch.tensor([0]), collectives.size)], rate=0.1)
            found[name] = words[0].weight.detach()
    return found


SPARSE = {
    "adamw": {},
    "adam": {},
    "sgd": {"weight_decay": 0.1},
    "sparse_adam": {"weight_decay": 0.1},
    "torch.optim:Adagrad": {},
    "torch.optim:RMSprop": {},
    "torch.optim:NAdam": {},
}


def test_every_optimizer_steps_with_sparse_gradients_on_one_rank_as_on_two() -> None:
    alone, together = (run_local(stepped_with_sparse_gradients, size, backend=BACKEND)[0] for size in (1, 2))
    for name in SPARSE:
        torch.testing.assert_close(alone[name], together[name])


def noisy_steps(backend: Backend, noise: str | None, rank: Rank) -> list[torch.Tensor]:
    """The weights after three steps over rows that are not as many on each rank, and none on one."""
    torch.manual_seed(rank.rank)
    settings = Train.model_validate({"optimizer": "sgd", "batch_size": 2, "gradient_noise": noise})
    with backend.connect() as collectives:
        network, groups = nn.Linear(4, 3), Groups(collectives, collectives)
        replica = Replica(network, settings, Classification(3), groups, torch.device("cpu"))
        for step in range(3):
            rows = [5, 3, 0][rank.rank]
            inputs = torch.linspace(step, rank.rank + 1, 4 * rows).reshape(rows, 4)
            replica.step([Batch(inputs, torch.arange(rows) % 3, 8)], rate=0.1)
    return [value.detach() for value in network.parameters()]


def test_replicas_stay_equal_to_the_last_bit_with_noise_in_their_gradients(backend: Backend) -> None:
    plain, diagonal, trace = (
        run_local(partial(noisy_steps, backend, noise), 3, backend=backend)
        for noise in (None, "fisher_diagonal", "fisher_trace")
    )
    for found in (diagonal, trace):
        for weight, bias in found[1:]:
            assert torch.equal(weight, found[0][0]) and torch.equal(bias, found[0][1])
        assert not torch.allclose(found[0][0], plain[0][0], rtol=1e-3)


def agreed_buffers(rank: Rank) -> list[torch.Tensor]:
    """The buffers of a network after ranks have agreed that have seen something else each."""
    network = nn.BatchNorm1d(2)
    network.running_mean.fill_(rank.rank)
    network.num_batches_tracked.fill_(7 - rank.rank)
    network.register_buffer("mask", torch.ones(3, 2, dtype=torch.bool), persistent=False)
    network.register_buffer("expanded", torch.ones(1, 2).expand(3, 2), persistent=False)  # as a forward pass may
    with BACKEND.connect() as collectives:
        agree(collectives, network.buffers(), name="buffers")
    return list(network.buffers())


def test_ranks_agree_on_all_buffers_also_where_there_is_no_mean() -> None:
    for mean, _, seen, mask, _ in run_local(agreed_buffers, 2, backend=BACKEND):
        assert mean.tolist() == [0.5, 0.5]
        assert seen.item() == 7
        assert mask.all()


class Normalised(nn.Module):
    """Normalises an image by its own pixels, and then the means of its channels, of which one row has one each."""

    def __init__(self) -> None:
        super().__init__()
        self.pixels, self.means, self.last = nn.BatchNorm2d(2), nn.BatchNorm1d(2), nn.Linear(2, 3)
        self.uncalled = nn.BatchNorm1d(2)
        self.fails = False

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        means = self.uncalled.forward(self.means(input=self.pixels(images).mean(dim=(2, 3))))
        if self.fails:
            raise KeyError
        return self.last(means)


def counted_batches(rank: Rank) -> list[tuple[int, int]]:
    """By how many batches each layer has been normalised: after one row, after two, and after one that fails."""
    network, counts = Normalised(), []
    with BACKEND.connect() as collectives:
        replica = Replica(network, Train(), Classification(3), Groups(collectives, collectives), torch.device("cpu"))
        for rows, fails in ((1, False), (2, False), (1, True)):
            network.fails = fails
            with pytest.raises(KeyError) if fails else nullcontext():
                replica.step([Batch(torch.randn(rows, 2, 5, 5), torch.zeros(rows, dtype=torch.int64), rows)], rate=0.1)
            assert all(module.training and not module._forward_pre_hooks for module in network.modules())
            counts.append((network.pixels.num_batches_tracked.item(), network.means.num_batches_tracked.item()))
    return counts


def test_one_image_is_normalised_by_its_own_pixels_and_one_value_per_channel_by_running_means() -> None:
    assert run_local(counted_batches, 1, backend=BACKEND)[0] == [(1, 0), (2, 1), (3, 1)]
