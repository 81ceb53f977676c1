"""Estimators of ``pyspark.ml`` whose features are texts, images and others, by the names of a network's arguments."""

from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pytest
import torch
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator, RegressionEvaluator
from pyspark.ml.feature import SQLTransformer
from pyspark.ml.tuning import ParamGridBuilder, TrainValidationSplit
from pyspark.sql import DataFrame, SparkSession
from torch import nn

from sparkdl import TorchClassifier, TorchRegressionModel, TorchRegressor
from sparkdl.errors import ConfigError, DataError

ROWS, COLOURS, FILLING = 120, ["Red", "Green", "Blue"], ["a", "of", "and"]
BERT = {
    "model_type": "bert",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "hidden_dropout_prob": 0.0,
}
TOKENS = {"column": "lower", "kind": "tokens", "vocabulary": 270, "max_length": 32}


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """The first word of a text is a colour, whose number is the label; a photo has 4 x 4 grey pixels."""
    random = np.random.default_rng(0)
    found = []
    for number in range(ROWS):
        words = [COLOURS[number % 3], *random.choice(FILLING, random.integers(0, 9))]
        pixels = (random.integers(0, 256, 16) // (1 + number % 4)).astype(np.uint8)
        light = float(pixels.mean()) + 100 * (number % 3)
        steps = list(range(1 + number % 4))
        found.append((number % 3, " ".join(words), bytearray(pixels.tobytes()), steps, light, number % 5 == 0))
    schema = "label int, text string, photo binary, steps array<int>, light double, held_out boolean"
    return spark.createDataFrame(found, schema).cache()


@pytest.fixture
def settings(tmp_path: Path, empty_store: Path) -> dict[str, Any]:
    copy(empty_store, tmp_path / "mlflow.db")
    store = {"store": str(tmp_path / "store"), "tracking_uri": f"sqlite:///{tmp_path / 'mlflow.db'}"}
    return {"batch_size": 8, "learning_rate": 0.01, **store}


def test_a_transformer_learns_from_texts_in_a_pipeline_that_is_saved_and_loaded(
    rows: DataFrame, settings: dict[str, Any], tmp_path: Path
) -> None:
    network = TorchClassifier(
        featuresCol={"input_ids": TOKENS},
        model="transformers:AutoModelForSequenceClassification",
        model_options={"config": BERT},
        validationIndicatorCol="held_out",
        epochs=6,
        num_ranks=1,
        **settings,
    )
    lower = SQLTransformer(statement="select *, lower(text) as lower from __THIS__")
    Pipeline(stages=[lower, network]).write().save(str(tmp_path / "pipeline"))
    fitted = Pipeline.load(str(tmp_path / "pipeline")).fit(rows)
    scored = fitted.transform(rows)
    assert scored.columns == [*rows.columns, "lower", "rawPrediction", "probability", "prediction"]
    assert MulticlassClassificationEvaluator(metricName="accuracy").evaluate(scored.where("held_out")) > 0.9
    fitted.write().save(str(tmp_path / "model"))
    loaded = PipelineModel.load(str(tmp_path / "model")).transform(rows.drop("label"))
    assert loaded.select("probability").collect() == scored.select("probability").collect()


class Towers(nn.Module):
    """Takes a photo, the words of a text by their hashes, a place by its number, and a list of numbers."""

    def __init__(
        self, input_shapes: dict[str, tuple[int, ...]], vocabularies: dict[str, int], num_classes: int
    ) -> None:
        super().__init__()
        self.photo = nn.Linear(int(np.prod(input_shapes["photo"])), num_classes)
        self.embeddings = nn.ModuleDict({name: nn.Embedding(size, num_classes) for name, size in vocabularies.items()})
        for each in self.embeddings.values():
            nn.init.zeros_(each.weight)

    def forward(
        self,
        photo: torch.Tensor,
        words: torch.Tensor,
        place: torch.Tensor,
        steps: torch.Tensor,
        steps_mask: torch.Tensor,
    ) -> torch.Tensor:
        found: torch.Tensor = self.photo(photo.flatten(1)) + self.embeddings["place"](place)[:, 0]
        # Of words, 0 stands where a text has no more of them.
        for name, ids, there in [("words", words, words > 0), ("steps", steps, steps_mask)]:
            found = found + (self.embeddings[name](ids) * there.unsqueeze(-1)).sum(1)
        return found


def test_images_texts_and_ids_are_learned_from_together_in_a_search(
    rows: DataFrame, settings: dict[str, Any], tmp_path: Path
) -> None:
    hashes = {"kind": "hash_words", "columns": ["text"], "dimensions": 12, "vocabulary": 512}
    index = {"kind": "index", "columns": ["held_out"]}
    inputs = {
        "photo": {"column": "photo", "image_shape": [4, 4]},
        "words": {"column": "text", "kind": "ids", "stages": [hashes]},
        "place": {"column": "held_out", "kind": "ids", "stages": [index]},
        "steps": {"column": "steps", "kind": "sequence"},
    }
    network = TorchRegressor(featuresCol=inputs, labelCol="light", model=Towers, epochs=25, num_ranks=1, **settings)
    search = TrainValidationSplit(
        estimator=network,
        estimatorParamMaps=ParamGridBuilder().addGrid(network.learning_rate, [0.05]).build(),
        evaluator=RegressionEvaluator(labelCol="light", metricName="r2"),
        trainRatio=0.5,
        seed=0,
    )
    found = search.fit(rows)
    assert found.validationMetrics[0] > 0.8
    found.bestModel.write().save(str(tmp_path / "model"))
    loaded = TorchRegressionModel.load(str(tmp_path / "model")).transform(rows.drop("light"))
    assert loaded.select("prediction").collect() == found.transform(rows).select("prediction").collect()


def test_columns_by_name_that_cannot_be_are_told_before_anything_starts(
    rows: DataFrame, settings: dict[str, Any], tmp_path: Path
) -> None:
    steps = {"steps": {"column": "steps", "kind": "sequence"}}
    with pytest.raises(
        ConfigError, match="missing: only for a single vector of features, but featuresCol names several inputs"
    ):
        TorchClassifier(featuresCol=steps, missing=0.0, model=Towers, **settings).fit(rows)
    with pytest.raises(ConfigError, match=r"featuresCol\.steps: unknown key 'knd'"):
        TorchClassifier(featuresCol={"steps": {"column": "steps", "knd": "sequence"}})
    assert TorchClassifier(featuresCol=steps).setFeaturesCol("x").getFeaturesCols() == ["x"]
    with pytest.raises(DataError, match=r"no column 'stps' \(did you mean 'steps'\?\)"):
        TorchClassifier(featuresCol={"steps": "stps"}, model=Towers, **settings).fit(rows)


def test_an_estimator_whose_network_is_no_name_says_so_and_overwrites_nothing(tmp_path: Path) -> None:
    place = str(tmp_path / "network")
    TorchClassifier(model="mlp").write().save(place)
    with pytest.raises(ConfigError, match="model is the class Towers, which cannot be saved; set its import path"):
        TorchClassifier(model=Towers).write().overwrite().save(place)
    assert TorchClassifier.load(place).getOrDefault("model") == "mlp"
