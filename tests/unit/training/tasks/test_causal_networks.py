"""Causal language models of transformers, at tiny sizes: tried on two rows of tokens before anything starts."""

from typing import Any

import pytest

from sparkdl.data import Dataset
from sparkdl.errors import ModelError
from sparkdl.settings import Train
from sparkdl.training.checks.tried_model import check_model
from tests.language_blocks import LENGTH, language_blocks

GPT = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": LENGTH}


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return language_blocks(tmp_path_factory.mktemp("blocks"))


def settings(**changes: Any) -> Train:
    return Train(model="transformers:AutoModelForCausalLM", model_options={"config": GPT | changes})


def test_a_network_that_has_a_place_for_each_token_of_a_row_is_built_for_the_tokeniser(blocks: Dataset) -> None:
    network: Any = check_model(blocks, settings())
    assert network.config.vocab_size == blocks.card.inputs["input_ids"].vocabulary


def test_a_network_with_fewer_places_than_a_row_has_tokens_is_refused(blocks: Dataset) -> None:
    with pytest.raises(ModelError, match="fewer rows than there are ids, or places"):
        check_model(blocks, settings(n_positions=4))
