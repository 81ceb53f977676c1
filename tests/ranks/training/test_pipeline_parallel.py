"""Stages of a network on several ranks: the gradients and answers of the whole network, by each schedule."""

import copy
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import TorchBackend
from sparkdl.layouts import PipelinePlan, find_stages
from sparkdl.layouts.pipeline_parallel import PipelineParallel

BACKEND = TorchBackend()
ROWS, WORDS = 10, 40


class Tied(nn.Module):
    """Words to words by way of layers, one of which adds to what is two layers before; the table is at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, 12)
        self.layers = nn.ModuleList(nn.Linear(12, 12) for _ in range(6))
        self.last = nn.Linear(12, WORDS, bias=False)
        self.last.weight = self.table.weight

    def forward(self, words: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        found = first = self.table(words)
        for layer in self.layers:
            found = layer(found).tanh() * mask.unsqueeze(-1)
        answer: torch.Tensor = self.last(found + first)
        return answer


def batch(length: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    words = torch.randint(0, WORDS, (ROWS, length), generator=generator)
    return {"words": words, "mask": torch.rand(ROWS, length, generator=generator) < 0.9}


def loss_of(labels: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """The mean over the rows of a batch, for some of them, and for those that fill up the last microbatch."""

    def loss(logits: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        own = places[places < ROWS]
        summed = functional.cross_entropy(logits[: len(own)].flatten(0, 1), labels[own].flatten(), reduction="sum")
        return summed / labels.numel()

    return loss


def differences(schedule: Any, cuts: tuple[int, ...], rank: Rank) -> tuple[float, float, int]:
    """From the whole network: the largest of gradients and of answers; and the bytes that this rank has sent."""
    torch.manual_seed(0)
    network = Tied()
    whole = copy.deepcopy(network)
    with BACKEND.connect() as ranks:
        plan = PipelinePlan(ranks.size, cuts, 4, schedule, batch(7))
        part = PipelineParallel(network, plan, ranks, nullcontext)
        for length in (7, 3, 7):  # batches of several shapes, and one again
            inputs = batch(length)
            labels = inputs["words"].roll(1, dims=1)
            part.back_propagate(inputs, loss_of(labels))
            loss_of(labels)(whole(**inputs), torch.arange(ROWS)).backward()
        part.add_tied_gradients()
        part.clip_gradients(0.5)
        nn.utils.clip_grad_norm_(whole.parameters(), 0.5)
        expected = dict(whole.named_parameters(remove_duplicate=False))
        own = part.model.named_parameters()
        gradients = max(float((each.grad - expected[name].grad).abs().max()) for name, each in own)
        with torch.no_grad():
            answers = float((part.model.eval()(**batch(5)) - whole(**batch(5))).abs().max())
        return gradients, answers, ranks.bytes_sent


@pytest.mark.parametrize(
    ("schedule", "ranks"), [("1f1b", 2), ("1f1b", 3), ("gpipe", 2), ("interleaved", 2)], ids=lambda each: str(each)
)
def test_stages_have_the_gradients_and_the_answers_of_the_whole_network(schedule: str, ranks: int) -> None:
    stages = ranks * (2 if schedule == "interleaved" else 1)
    cuts = find_stages(Tied(), batch(7), stages, count=2)
    for gradients, answers, sent in run_local(partial(differences, schedule, cuts), ranks, backend=BACKEND):
        assert gradients < 1e-6 and answers < 1e-6
        assert sent > 0
