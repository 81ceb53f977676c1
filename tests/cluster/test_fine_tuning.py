"""A transformer of the package transformers, from a table of texts to a column of predictions."""

from pathlib import Path
from shutil import copy

import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

import sparkdl
from sparkdl import Cluster, Prepare, Split, Tracking, Train
from sparkdl.models import NETWORK_FILE, load_weights, module_of
from sparkdl.tracking import download

ROWS, WORDS = 160, ["red", "green", "blue", "a", "of", "and"]
BERT = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    random = np.random.default_rng(0)
    texts = [" ".join([WORDS[n % 3], *random.choice(WORDS[3:], random.integers(0, 9))]) for n in range(ROWS)]
    return spark.createDataFrame(
        [(n, WORDS[n % 3], text) for n, text in enumerate(texts)], "n int, label string, text string"
    )


def test_a_transformer_with_adapters_learns_from_texts_and_scores_without_its_packages(
    rows: DataFrame, tmp_path: Path, empty_store: Path, spark: SparkSession
) -> None:
    copy(empty_store, tmp_path / "mlflow.db")
    tracking = Tracking(uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    words = {"column": "text", "kind": "tokens", "vocabulary": 270, "max_length": 32}
    split = Split(fractions={"test": 0.2})
    prepare = {"output": str(tmp_path / "texts"), "inputs": {"input_ids": words}, "split": split}
    dataset = sparkdl.prepare(rows, Prepare.model_validate(prepare))
    recipe = {
        "model": "transformers:AutoModelForSequenceClassification",
        "model_options": {"config": BERT},
        "adapters": {"kind": "lora", "rank": 2, "targets": ["query", "value"], "whole": ["classifier", "embeddings"]},
        "epochs": 8,
        "batch_size": 16,
        "learning_rate": 0.02,
        "run_dir": str(tmp_path / "runs"),
    }
    train = Train.model_validate(recipe)
    trained = sparkdl.train(dataset, train, cluster=Cluster(num_ranks=2), tracking=tracking, spark=spark)
    assert trained.metrics["test_accuracy"] > 0.9
    network = download(trained.model_uri, tracking) / NETWORK_FILE
    assert module_of(network) is None
    assert not [name for name in load_weights(network) if "lora" in name]
    scored = sparkdl.score(rows, trained).toPandas()
    assert (scored.prediction == scored.label).mean() > 0.9
