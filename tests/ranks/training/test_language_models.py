"""Every token counts alike on any number of ranks, also where their blocks are short and their batches uneven."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from sparkdl.cluster import Rank, run_local
from sparkdl.collectives import Backend
from sparkdl.data import Dataset
from sparkdl.settings import Train
from sparkdl.training.job import Job
from sparkdl.training.loop import train_rank
from tests.language_blocks import VOCABULARY, language_blocks

EPOCHS = 3


class Bigrams(nn.Module):
    """What comes next follows from the token alone; in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, VOCABULARY).double()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.table(input_ids)
        return answer


def train(dataset: Dataset, folder: str, backend: Backend, rank: Rank) -> list[dict[str, float]]:
    """One step an epoch, over all rows of all ranks."""
    recipe = {"model": Bigrams, "optimizer": "sgd", "learning_rate": 2.0, "epochs": EPOCHS, "batch_size": 200}
    outcome = train_rank(Job(dataset, Train.model_validate(recipe), folder, backend, reference=rank.size), rank)
    return outcome.history if outcome else []


def test_every_token_counts_alike_on_any_number_of_ranks(backend: Backend, tmp_path: Path) -> None:
    (tmp_path / "blocks").mkdir()
    dataset = language_blocks(tmp_path / "blocks")
    names = [f"{split}_{name}" for split in ("train", "validation") for name in ("loss", "accuracy")]
    alone, together = (
        run_local(partial(train, dataset, str(tmp_path / str(size)), backend), size, backend=backend)[0]
        for size in (1, 3)
    )
    assert len(alone) == EPOCHS and alone[-1]["validation_perplexity"] < alone[0]["validation_perplexity"]
    for one, other in zip(alone, together, strict=True):
        assert [other[name] for name in [*names, "validation_perplexity"]] == pytest.approx(
            [one[name] for name in [*names, "validation_perplexity"]], rel=1e-9
        )
