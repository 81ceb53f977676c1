"""How likely texts are to a network: each token is predicted once, in windows as long as the blocks of training."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from sparkdl.data.model_card import ModelCard
from sparkdl.errors import DataError
from sparkdl.models import NETWORK_FILE, export_network
from sparkdl.preprocessing.input_rows import as_binary
from sparkdl.scoring.predictor import Predictor
from tests.language_blocks import END, LENGTH, SPEC, VOCABULARY


class Sums(nn.Module):
    """What comes next follows from the sum of all tokens of the window."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, VOCABULARY)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return (self.table(input_ids) * attention_mask.unsqueeze(2)).cumsum(dim=1)


@pytest.fixture(scope="module")
def network() -> Sums:
    torch.manual_seed(0)
    return Sums().eval()


def open_predictor(network: nn.Module, folder: Path) -> Predictor:
    card = ModelCard(
        inputs={"input_ids": SPEC},
        task="language_modelling",
        label_names=(),
        raw_columns={"text": "string"},
        preprocessing=True,
    )
    rows = {"input_ids": torch.zeros(2, LENGTH, dtype=torch.int64), "attention_mask": torch.ones(2, LENGTH).bool()}
    export_network(network, folder / NETWORK_FILE, rows, lengths=list(rows))
    (folder / "card.json").write_text(card.model_dump_json())
    return Predictor.load(folder)


def column_of(texts: list[list[int]]) -> pa.Array:
    offsets = np.cumsum([0, *map(len, texts)])
    values = as_binary(np.array([token for text in texts for token in text], np.int32), offsets)
    return pa.StructArray.from_arrays([values], ["input_ids"])


def expected(network: Sums, text: list[int]) -> float:
    """One window after another."""
    tokens, found = [END, *text], 0.0
    for begin in range(0, len(text), LENGTH - 1):
        window = torch.tensor([tokens[begin : begin + LENGTH]])
        logits = network(window, torch.ones_like(window, dtype=torch.bool))[0, :-1]
        found += logits.log_softmax(dim=1).gather(1, window[0, 1:, None]).sum().item()
    return found


def test_each_token_of_a_text_of_any_length_is_predicted_once(network: Sums, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    texts = [random.integers(0, END, length).tolist() for length in (1, 2, 7, 8, 14, 15, 40)]
    predictor = open_predictor(network, tmp_path)
    for batch_size in (1, 3, 100):
        answers = predictor.answer(column_of(texts), batch_size=batch_size)
        likelihood, tokens, perplexity = (each.to_pylist() for each in answers)
        assert likelihood == pytest.approx([expected(network, text) for text in texts], rel=1e-5)
        assert tokens == list(map(len, texts))
        assert perplexity == pytest.approx(np.exp(-np.divide(likelihood, tokens)))
    assert [each.to_pylist() for each in predictor.answer(column_of([]))] == [[], [], []]
    assert [each.type for each in answers] == predictor.task.answer.types


def test_a_text_without_a_finite_likelihood_is_told(network: Sums, tmp_path: Path) -> None:
    broken = Sums()
    with torch.no_grad():
        broken.table.weight[3] = torch.nan
    predictor = open_predictor(broken, tmp_path)
    with pytest.raises(DataError, match="input 'input_ids': 1 texts have no finite likelihood"):
        predictor.answer(column_of([[1, 2], [3, 1]]))
