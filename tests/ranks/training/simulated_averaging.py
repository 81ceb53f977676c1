"""What compressed gradients of all ranks come to, computed in one process from the formulas of the papers.

Each function takes the options and the number of ranks, and is then sent the epoch and the gradients of each rank, by
parameter; it yields what stands for their mean.
"""

from collections.abc import Callable, Iterator

import torch

from sparkdl.training.checkpoints.random_states import seed_everything

Gradients = list[torch.Tensor]


def plain(options: dict, size: int) -> Iterator:
    _, gradients = yield
    while True:
        _, gradients = yield [sum(parts) / size for parts in zip(*gradients, strict=True)]


def topk(options: dict, size: int) -> Iterator:
    """Deep Gradient Compression: u is a rank's velocity, v what it has not sent."""
    epoch, gradients = yield
    u = [torch.zeros_like(as_vector(each)) for each in gradients]
    v = [torch.zeros_like(each) for each in u]
    while True:
        warmup, ratio = options["warmup_epochs"], options["ratio"]
        if epoch < warmup:
            ratio = 0.25 * (ratio / 0.25) ** (epoch / warmup)
        mean = torch.zeros_like(u[0])
        for rank in range(size):
            u[rank] = options["momentum"] * u[rank] + as_vector(gradients[rank])
            v[rank] += u[rank]
            largest = v[rank].abs().argsort(descending=True)[: round(ratio * len(mean))]
            mean[largest] += v[rank][largest] / size
            u[rank][largest] = v[rank][largest] = 0
        epoch, gradients = yield by_parameter(mean, gradients[0])


def powersgd(options: dict, size: int) -> Iterator:
    """Rank one: a power iteration on the mean of all matrices, each with its own error."""
    _, gradients = yield
    errors = [[torch.zeros_like(each) for each in own] for own in gradients]
    bases = [torch.randn(each[0].numel(), 1, generator=torch.Generator().manual_seed(0)) for each in gradients[0]]
    while True:
        result = []
        for place, parts in enumerate(zip(*gradients, strict=True)):
            if parts[0].dim() == 1:
                result.append(sum(parts) / size)
                continue
            matrices = [part + errors[rank][place] for rank, part in enumerate(parts)]
            left = sum(matrix @ bases[place].double() for matrix in matrices) / size
            left /= left.norm()
            rights = [matrix.T @ left for matrix in matrices]
            for rank, matrix in enumerate(matrices):
                errors[rank][place] = matrix - left @ rights[rank].T
            bases[place] = sum(rights) / size
            result.append(left @ bases[place].T)
        _, gradients = yield result


def qsgd(options: dict, size: int) -> Iterator:
    """Each rank draws from a generator of its own, seeded as a run seeds it; there is one block of 512 values."""
    levels = 2 ** (options["bits"] - 1) - 1
    states = []
    for rank in range(size):
        seed_everything(0, 0, 1 + rank)
        states.append(torch.get_rng_state())
    _, gradients = yield
    while True:
        mean = torch.zeros_like(as_vector(gradients[0]))
        for rank in range(size):
            torch.set_rng_state(states[rank])
            draws = torch.rand(512, dtype=torch.float64)[: len(mean)]
            states[rank] = torch.get_rng_state()
            vector = as_vector(gradients[rank])
            step = vector.abs().max() / levels
            mean += (vector / step + draws).floor() * step / size if step else 0
        _, gradients = yield by_parameter(mean, gradients[0])


def as_vector(gradients: Gradients) -> torch.Tensor:
    """In the order in which gradients travel: from the last layer to the first."""
    return torch.cat([each.reshape(-1) for each in reversed(gradients)])


def by_parameter(vector: torch.Tensor, like: Gradients) -> Gradients:
    parts = vector.split([each.numel() for each in reversed(like)])
    return [part.view_as(each) for part, each in zip(reversed(parts), like, strict=True)]


MEANS: dict[str, Callable[[dict, int], Iterator]] = {
    "plain": plain,
    "topk": topk,
    "powersgd": powersgd,
    "qsgd": qsgd,
}
