"""Texts in blocks, from a table to a network that tells how likely other texts are: the recipes of the page."""

import re
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pytest
import tokenizers
import torch
import transformers
import yaml
from pyspark.sql import DataFrame, SparkSession

import sparkdl
from sparkdl import Cluster, Dataset, Prepare, Tracking, Train
from sparkdl.data import Loader
from sparkdl.models import NETWORK_FILE, load_weights, module_of
from sparkdl.tracking import download
from sparkdl.training.checkpoints import checkpoint

PAGE = (Path(__file__).parents[2] / "docs" / "language_models.md").read_text()
RECIPES = [yaml.safe_load(recipe) for recipe in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
ROWS, LENGTH = 160, 24


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Texts that count; some have no word at all."""
    random = np.random.default_rng(0)
    begins, ends = random.integers(0, 6, ROWS), random.integers(3, 11, ROWS)
    listed = [(n, " ".join(WORDS[begins[n] : ends[n]])) for n in range(ROWS)]
    return spark.createDataFrame(listed, "n int, text string")


def settings(recipe: dict[str, Any], output: Path, **words: Any) -> Prepare:
    section = recipe["prepare"] | {"output": str(output), "source": None}
    section["inputs"] = {"input_ids": section["inputs"]["input_ids"] | {"block_length": LENGTH} | words}
    section["split"] = {"fractions": {"validation": 0.2, "test": 0.2}}
    return Prepare.model_validate(section)


@pytest.fixture(scope="module")
def dataset(rows: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return sparkdl.prepare(rows, settings(RECIPES[0], tmp_path_factory.mktemp("blocks") / "it", vocabulary=290))


def test_blocks_have_every_token_once_and_are_the_same_for_any_partitions(
    rows: DataFrame, dataset: Dataset, tmp_path: Path
) -> None:
    again = Prepare.model_validate(dataset.card.settings | {"output": str(tmp_path / "again")})
    assert sparkdl.prepare(rows.repartition(3), again).digest == dataset.digest
    (spec,) = dataset.card.inputs.values()
    assert spec.shape == (LENGTH,) and spec.end_of_text == 1
    texts = sum(bool(text) for _, text in rows.collect())
    ends, short = 0, 0
    for split in dataset.splits:
        (batch,) = Loader(dataset, split, batch_size=1000, shuffle=False).epoch(0)
        tokens, mask = batch.inputs.values()  # type: ignore[union-attr]
        ends += int(((tokens == spec.end_of_text) & mask).sum())
        short += int((mask.sum(dim=1) < LENGTH).sum())
    assert ends == texts and short <= len(dataset.splits)


def test_a_network_learns_to_tell_the_next_token_and_how_likely_texts_are(
    rows: DataFrame, dataset: Dataset, tmp_path: Path, empty_store: Path, spark: SparkSession
) -> None:
    copy(empty_store, tmp_path / "mlflow.db")
    gate = {"metric": "test_perplexity", "maximum": 20}
    tracking = Tracking.model_validate(
        {"uri": f"sqlite:///{tmp_path / 'mlflow.db'}", "register_as": "counting", "gate": gate}
    )
    recipe = RECIPES[0]["train"] | {"epochs": 8, "batch_size": 2, "learning_rate": 0.02, "run_dir": str(tmp_path)}
    recipe["model_options"] = {
        "config": RECIPES[0]["train"]["model_options"]["config"] | {"n_embd": 32, "n_layer": 1, "n_positions": LENGTH}
    }
    trained = sparkdl.train(
        dataset, Train.model_validate(recipe), cluster=Cluster(num_ranks=2), tracking=tracking, spark=spark
    )
    assert trained.metrics["test_perplexity"] == pytest.approx(np.exp(trained.metrics["test_loss"]), rel=1e-4)
    assert trained.metrics["test_perplexity"] < 8 and trained.metrics["test_accuracy"] > 0.3
    assert trained.registered is not None and trained.registered.moved
    assert module_of(download(trained.model_uri, tracking) / NETWORK_FILE) is None
    texts = spark.createDataFrame(
        [("two three four five six",), ("six five four three two",), ("",), ("one two three four " * 40,)],
        "text string",
    )
    counts, muddled, empty, long = sparkdl.score(texts, trained, on_error="null").collect()
    assert counts.log_likelihood > muddled.log_likelihood and counts.num_tokens == muddled.num_tokens
    assert counts.perplexity == pytest.approx(np.exp(-counts.log_likelihood / counts.num_tokens))
    assert empty.error == "input 'input_ids' is null or has no tokens" and empty.perplexity is None
    assert long.num_tokens > 4 * LENGTH and long.error is None


@pytest.fixture
def pretrained(tmp_path: Path) -> Path:
    """A small network in a folder, as ``save_pretrained`` makes it, with the tokeniser that it was made for."""
    folder = tmp_path / "gpt2"
    tokeniser = tokenizers.ByteLevelBPETokenizer()
    tokeniser.train_from_iterator(2 * [" ".join(WORDS)], 270, special_tokens=["<|endoftext|>"], show_progress=False)
    sizes = {"vocab_size": tokeniser.get_vocab_size(), "n_positions": LENGTH, "n_embd": 32, "n_layer": 1, "n_head": 4}
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).save_pretrained(folder)
    tokeniser.save(str(folder / "tokenizer.json"))
    return folder


def test_a_network_of_others_is_trained_by_adapters_alone_with_the_tokeniser_beside_it(
    rows: DataFrame, pretrained: Path, tmp_path: Path, empty_store: Path, spark: SparkSession
) -> None:
    copy(empty_store, tmp_path / "mlflow.db")
    recipe = yaml.safe_load(yaml.safe_dump(RECIPES[1]).replace("/shared/models/gpt2", str(pretrained)))
    dataset = sparkdl.prepare(rows, settings(recipe, tmp_path / "it"))
    assert dataset.card.inputs["input_ids"].vocabulary == 270
    sizes = {"epochs": 6, "batch_size": 2, "learning_rate": 0.02, "run_dir": str(tmp_path)}
    tracking = Tracking(uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    train = Train.model_validate(recipe["train"] | sizes)
    trained = sparkdl.train(dataset, train, cluster=Cluster(num_ranks=2), tracking=tracking, spark=spark)
    figures = [epoch["validation_perplexity"] for epoch in trained.history]
    assert trained.metrics["test_perplexity"] < 0.95 * figures[0] < 270
    learned = checkpoint.load_weights(trained.checkpoint)
    adapters = {name: weights for name, weights in learned.items() if "lora_" in name}
    assert sum(each.numel() for each in adapters.values()) == 8 * (32 + 3 * 32)
    assert not {name for name in learned.keys() - adapters.keys() if name.endswith((".weight", "_layer.bias"))}
    assert not [name for name in load_weights(download(trained.model_uri, tracking) / NETWORK_FILE) if "lora" in name]
    counts, muddled = sparkdl.score(
        spark.createDataFrame([("two three four five six",), ("six five four three two",)], "text string"), trained
    ).collect()
    assert counts.log_likelihood > muddled.log_likelihood
