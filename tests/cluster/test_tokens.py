"""Texts as sequences of tokens: a tokeniser that is learned, or a file's, goes with the dataset and with the model."""

import json
from collections.abc import Callable
from pathlib import Path
from shutil import copy

import mlflow
import numpy as np
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession
from tokenizers import Tokenizer
from torch import nn

import sparkdl
from sparkdl import Cluster, Dataset, Prepare, Split, Tracking, Train
from sparkdl.data import Loader
from sparkdl.errors import ConfigError, DataError

ROWS, WORDS = 200, ["red", "green", "blue", "a", "of", "and"]


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    random = np.random.default_rng(0)

    def text(label: int) -> str:
        return " ".join([WORDS[label], *random.choice(WORDS[3:], random.integers(0, 20))])

    return spark.createDataFrame(
        [(n, WORDS[n % 3], text(n % 3)) for n in range(ROWS)], "n int, label string, text string"
    )


@pytest.fixture(scope="module")
def dataset(rows: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("tokens")
    words = {"column": "text", "kind": "tokens", "vocabulary": 270, "max_length": 16, "on_long_rows": "cut"}
    settings = {"output": str(folder / "it"), "inputs": {"input_ids": words}, "split": Split(fractions={"test": 0.2})}
    return sparkdl.prepare(rows, Prepare.model_validate(settings))


class Encoder(nn.Module):
    """As transformers' networks are called."""

    def __init__(
        self, vocabularies: dict[str, int], input_shapes: dict[str, tuple[int, ...]], num_classes: int
    ) -> None:
        super().__init__()
        self.tokens, self.places = (
            nn.Embedding(vocabularies["input_ids"], 16),
            nn.Embedding(*input_shapes["input_ids"], 16),
        )
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.out = nn.Linear(16, num_classes)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        hidden = self.layer(self.tokens(input_ids) + self.places(places), src_key_padding_mask=~attention_mask)
        there = attention_mask.unsqueeze(-1).float()
        return {"logits": self.out((hidden * there).sum(1) / there.sum(1))}


def test_a_network_learns_from_tokens_and_its_model_brings_the_tokeniser(
    rows: DataFrame,
    dataset: Dataset,
    tmp_path: Path,
    empty_store: Path,
    use_store: Callable[[str], None],
    spark: SparkSession,
) -> None:
    copy(empty_store, tmp_path / "mlflow.db")
    tracking = Tracking(uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    recipe = Train(model=Encoder, epochs=6, batch_size=16, optimizer="adam", learning_rate=0.02, run_dir=str(tmp_path))
    trained = sparkdl.train(dataset, recipe, cluster=Cluster(num_ranks=2), tracking=tracking, spark=spark)
    assert trained.metrics["test_accuracy"] > 0.9
    scored = sparkdl.score(rows, trained).orderBy("n").toPandas()
    assert (scored.prediction == scored.label).mean() > 0.9
    use_store(str(tracking.uri))
    model = mlflow.pyfunc.load_model(trained.model_uri)
    assert model.predict(scored[["text"]]).prediction.tolist() == scored.prediction.tolist()
    empty = spark.createDataFrame([("",), ("red " * 99,)], "text string")
    first, second = sparkdl.score(empty, trained, on_error="null").collect()
    assert first["error"] == "input 'input_ids' is null or has no tokens" and second["prediction"] == "red"


def test_tokens_are_those_of_the_training_rows_and_the_same_every_time(
    rows: DataFrame, dataset: Dataset, tmp_path: Path
) -> None:
    settings = Prepare.model_validate(dataset.card.settings | {"output": str(tmp_path / "again")})
    assert sparkdl.prepare(rows.repartition(3), settings).digest == dataset.digest
    (spec,) = dataset.card.inputs.values()
    assert spec.vocabulary and spec.vocabulary <= 270 and spec.shape == (16,) and spec.padding == 0
    batch = next(Loader(dataset, "train", batch_size=8).epoch(0))
    assert isinstance(batch.inputs, dict) and list(batch.inputs) == ["input_ids", "attention_mask"]


def test_a_tokeniser_of_a_file_is_kept_and_known_by_its_content(
    rows: DataFrame, dataset: Dataset, tmp_path: Path
) -> None:
    stages = json.loads((Path(dataset.path) / "preprocessing" / "stages.json").read_text())["stages"]
    tokeniser = Tokenizer.from_str(stages[0]["tokeniser"])
    for name in ("a.json", "b.json"):
        tokeniser.save(str(tmp_path / name))
    words = {"column": "text", "kind": "tokens", "tokenizer": str(tmp_path / "a.json")}

    def prepare(**change: object) -> Dataset:
        settings = {"output": str(tmp_path / "of_file"), "inputs": {"words": words | change}}
        return sparkdl.prepare(rows, Prepare.model_validate(settings))

    first = prepare()
    assert max(first.card.inputs["words"].shape) > 16
    assert prepare(tokenizer=str(tmp_path / "b.json")).digest == first.digest
    tokeniser.add_tokens(["red"])
    tokeniser.save(str(tmp_path / "b.json"))
    with pytest.raises(Exception, match="prepared with other settings"):
        prepare(tokenizer=str(tmp_path / "b.json"))
    with pytest.raises(ConfigError, match=r"there is no tokeniser in .*none\.json"):
        prepare(tokenizer=str(tmp_path / "none.json"))
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(DataError, match=r"inputs\.words: .*a\.json is no tokeniser"):
        sparkdl.prepare(rows, Prepare.model_validate({"output": str(tmp_path / "no"), "inputs": {"words": words}}))


def test_texts_without_tokens_and_texts_that_are_too_long_are_named(spark: SparkSession, tmp_path: Path) -> None:
    for text, error in [("", "1 rows without tokens"), ("a " * 40, "1 rows of more than 30 tokens")]:
        listed = [(n, n % 2, text if n == 11 else f"a {n}", "train") for n in range(30)]
        rows = spark.createDataFrame(listed, "n int, label int, text string, part string")
        words = {"column": "text", "kind": "tokens", "vocabulary": 257, "max_length": 30}
        settings = {
            "output": str(tmp_path / "it"),
            "inputs": {"words": words},
            "split": Split(column="part", fractions={}),
        }
        with pytest.raises(DataError, match=rf"input 'words' \(column text\) has {error}.*n = 11"):
            sparkdl.prepare(rows, Prepare.model_validate(settings))
