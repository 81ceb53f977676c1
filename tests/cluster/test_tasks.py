"""Regression and several labels, from raw rows to a column of predictions; rows with weights; sparse rows."""

from collections.abc import Callable
from pathlib import Path
from shutil import copy

import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from sklearn import metrics

import sparkdl
from sparkdl import Cluster, Dataset, Gate, Prepare, Split, Tracking, Train, TrainedModel
from sparkdl.data import Loader
from sparkdl.errors import ConfigError, DataError, DatasetError

SPLIT = Split(column="part", fractions={})
ROWS = 120


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Points in the plane, a number that is linear in them, which of two half planes they are in, and a weight."""
    random = np.random.default_rng(0)
    points = random.normal(size=(ROWS, 2))
    table = [
        (
            int(number),
            [float(x), float(y)],
            float(100 + 20 * x - 10 * y),
            [name for name, chosen in (("east", x > 0), ("north", y > 0)) if chosen],
            float(number % 3),
            "validation" if number % 5 == 0 else "train",
        )
        for number, (x, y) in enumerate(points)
    ]
    columns = "id long, point array<double>, height double, sides array<string>, weight double, part string"
    return spark.createDataFrame(table, columns).cache()


@pytest.fixture(scope="module")
def prepared(rows: DataFrame, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Dataset]:
    folder = tmp_path_factory.mktemp("prepared")

    def prepared(name: str, raw: DataFrame = rows, **settings: object) -> Dataset:
        chosen = {"features": ["point"], "split": SPLIT, "rows_per_group": 16} | settings
        return sparkdl.prepare(raw, Prepare.model_validate({"output": str(folder / name), **chosen}))

    return prepared


@pytest.fixture
def train(tmp_path: Path, empty_store: Path, spark: SparkSession) -> Callable[..., tuple[TrainedModel, Tracking]]:
    copy(empty_store, tmp_path / "mlflow.db")
    tracking = Tracking(uri=f"sqlite:///{tmp_path / 'mlflow.db'}", register_as="it")

    def train(dataset: Dataset, tracking: Tracking = tracking, **settings: object) -> tuple[TrainedModel, Tracking]:
        usual = {"epochs": 8, "batch_size": 8, "learning_rate": 0.02, "model_options": {"hidden": [16]}}
        chosen = Train.model_validate({"run_dir": str(tmp_path / "runs"), **usual, **settings})
        return sparkdl.train(dataset, chosen, cluster=Cluster(num_ranks=2), tracking=tracking, spark=spark), tracking

    return train


def test_numbers_with_fractions_are_predicted(
    prepared: Callable[..., Dataset], train: Callable[..., tuple[TrainedModel, Tracking]], rows: DataFrame
) -> None:
    dataset = prepared("heights", label="height", weight="weight")
    training = rows.where("part = 'train'").toPandas()
    assert dataset.card.task == "regression" and dataset.label_names == ()
    assert dataset.card.label_scale is not None
    assert dataset.card.label_scale.mean == pytest.approx(training["height"].mean())
    assert dataset.card.label_scale.std == pytest.approx(training["height"].std(ddof=0))
    assert dataset.card.mean_weight == pytest.approx(training["weight"].mean())
    dataset.verify()
    (batch,) = Loader(dataset, "train", batch_size=ROWS).epoch(0)
    assert batch.labels.dtype == torch.float64 and batch.weights is not None
    found = {(height, weight) for height, weight in zip(batch.labels.tolist(), batch.weights.tolist(), strict=True)}
    mean = training["weight"].mean()
    assert batch.weights.dtype == torch.float64
    weights = (training["weight"] / mean).round(12)
    assert {(height, round(weight, 12)) for height, weight in found} == set(
        zip(training["height"], weights, strict=True)
    )

    trained, tracking = train(dataset)
    assert {"validation_r2", "validation_rmse", "validation_mae", "validation_loss"} == trained.metrics.keys()
    assert trained.metrics["validation_r2"] > 0.9
    assert {"train_r2", "validation_rmse", "rows_per_second"} <= trained.history[0].keys()
    client = MlflowClient(tracking.uri)
    assert {"loss.png", "r2.png", "predicted_validation.png"} <= {
        file.path for file in client.list_artifacts(trained.run_id)
    }
    assert client.get_metric_history(trained.run_id, "step_rmse")
    assert client.get_run(trained.run_id).data.params["train.loss"] == "mse_loss"
    scored = sparkdl.score(rows, trained)  # which knows its store
    assert scored.columns == [*rows.columns, "prediction"]
    held_out = scored.where("part = 'validation' and weight > 0").toPandas()
    error = np.average((held_out["prediction"] - held_out["height"]) ** 2, weights=held_out["weight"])
    assert error**0.5 == pytest.approx(trained.metrics["validation_rmse"], rel=1e-4)

    with pytest.raises(DatasetError, match=r"train\.task is classification, and .* was prepared for regression"):
        train(dataset, task="classification")
    for settings in ({"best_by": "accuracy"}, {"target": {"metric": "train_f1", "value": 1}}):
        with pytest.raises(ConfigError, match=r"regression does not have( in training)?; it has loss, r2, rmse, mae"):
            train(dataset, **settings)
    gated = tracking.model_copy(update={"gate": Gate(metric="validation_accuracy")})
    with pytest.raises(ConfigError, match="there will be validation_loss, validation_mae"):
        train(dataset, tracking=gated)


def test_figures_of_two_classes_decide_and_are_those_of_the_predictions(
    prepared: Callable[..., Dataset], train: Callable[..., tuple[TrainedModel, Tracking]], rows: DataFrame
) -> None:
    two = rows.withColumn("side", sf.expr("if(point[0] + 0.6 * sin(id) > 0.5, 'yes', 'no')"))
    dataset = prepared("two", two, label="side", weight="weight")
    gate = Gate(metric="validation_area_under_pr", minimum=0.5)
    _, tracking = train(dataset, epochs=1)
    deciding = {"best_by": "area_under_roc", "class_weights": "balanced"}
    target = {"metric": "validation_f1", "value": 1.5}
    trained, _ = train(dataset, tracking.model_copy(update={"gate": gate}), target=target, **deciding)
    assert trained.registered is not None and "validation_area_under_pr" in trained.registered.reason
    best = max(epoch["validation_area_under_roc"] for epoch in trained.history)
    assert trained.metrics["validation_area_under_roc"] == best
    assert "train_accuracy" in trained.history[0] and "train_f1" not in trained.history[0]
    held_out = sparkdl.score(two, trained.model_uri, tracking=tracking).where("part = 'validation'").toPandas()
    true, likely = held_out["side"] == "yes", held_out["prediction"] == "yes"
    score, weights = np.where(likely, held_out["probability"], 1 - held_out["probability"]), held_out["weight"]
    expected = {
        "accuracy": metrics.accuracy_score(true, likely, sample_weight=weights),
        "area_under_roc": metrics.roc_auc_score(true, score, sample_weight=weights),
        "area_under_pr": metrics.average_precision_score(true, score, sample_weight=weights),
        "precision": metrics.precision_score(true, likely, sample_weight=weights),
        "recall": metrics.recall_score(true, likely, sample_weight=weights),
        "f1": metrics.f1_score(true, likely, sample_weight=weights),
        "log_loss": metrics.log_loss(true, score, sample_weight=weights),
    }
    for name, value in expected.items():
        assert trained.metrics[f"validation_{name}"] == pytest.approx(value, abs=1e-4), name
    client = MlflowClient(tracking.uri)
    files = {file.path for file in client.list_artifacts(trained.run_id)}
    assert {"roc_validation.png", "precision_recall_validation.png", "confusion_validation.png", "f1.png"} <= files
    table = Path(client.download_artifacts(trained.run_id, "classes_validation.csv")).read_text().splitlines()
    assert table[0] == "class,precision,recall,f1,rows" and [line.split(",")[0] for line in table[1:]] == ["no", "yes"]
    with pytest.raises(ConfigError, match="classification does not have in training; it has loss, accuracy"):
        train(dataset, target={"metric": "train_f1", "value": 1})


def test_a_loss_of_counts_predicts_counts(
    prepared: Callable[..., Dataset],
    train: Callable[..., tuple[TrainedModel, Tracking]],
    rows: DataFrame,
    tmp_path: Path,
) -> None:
    counted = rows.withColumn("count", sf.expr("floor(exp(0.9 + 0.4 * point[0]) + 0.1 * (id % 10))"))
    trained, tracking = train(prepared("counts", counted, label="count", task="regression"), loss="poisson_nll_loss")
    scored = sparkdl.score(counted, trained.model_uri, tracking=tracking).toPandas()
    assert scored["prediction"].min() > 0
    assert scored["prediction"].mean() == pytest.approx(scored["count"].mean(), rel=0.25)
    held_out = scored[scored["part"] == "validation"]
    error = ((held_out["prediction"] - held_out["count"]) ** 2).mean() ** 0.5
    assert error == pytest.approx(trained.metrics["validation_rmse"], rel=1e-4)
    assert trained.metrics["validation_r2"] > 0.5

    regressor = sparkdl.TorchRegressor(
        loss="poisson_nll_loss",
        model_options={"hidden": [16]},
        epochs=8,
        batch_size=8,
        learning_rate=0.02,
        featuresCol="point",
        labelCol="count",
        num_ranks=2,
        store=str(tmp_path / "store"),
        tracking_uri=tracking.uri,
    )
    predicted = regressor.fit(counted).transform(counted).toPandas()
    error = ((predicted["prediction"] - predicted["count"]) ** 2).mean()
    assert error < 0.5 * predicted["count"].var()  # of which a constant explains nothing


def test_lists_of_labels_are_predicted_and_training_ends_when_nothing_becomes_better(
    prepared: Callable[..., Dataset], train: Callable[..., tuple[TrainedModel, Tracking]], rows: DataFrame
) -> None:
    dataset = prepared("sides", label="sides")
    assert dataset.card.task == "multi_label" and dataset.label_names == ("east", "north")
    dataset.verify()
    (batch,) = Loader(dataset, "validation", batch_size=ROWS).epoch(0)
    assert batch.labels.dtype == torch.uint8
    assert torch.equal(batch.labels.bool(), batch.inputs > 0)

    trained, tracking = train(dataset, epochs=40, patience=3)
    assert trained.metrics["validation_f1"] > 0.9 and trained.metrics["validation_mean_average_precision"] > 0.9
    merits = [epoch["validation_mean_average_precision"] for epoch in trained.history]
    assert len(merits) == merits.index(max(merits)) + 1 + 3 < 40
    pictures = {file.path for file in MlflowClient(tracking.uri).list_artifacts(trained.run_id)}
    assert {"loss.png", "f1.png", "classes_validation.png"} <= pictures
    scored = sparkdl.score(rows, trained.model_uri, tracking=tracking, top_k=1)
    assert scored.schema["prediction"].simpleString() == "prediction:array<string>"
    answers = scored.select("prediction", "top_k", "sides").collect()
    assert sum(set(row.prediction) == set(row.sides) for row in answers) > 0.85 * ROWS
    assert all(
        len(row.top_k) == 1 and row.top_k[0].label in (row.prediction or [row.top_k[0].label]) for row in answers
    )
    assert trained.registered is not None and trained.registered.moved


def test_sparse_rows_with_a_task_give_the_batches_that_whole_rows_do(
    prepared: Callable[..., Dataset], rows: DataFrame
) -> None:
    thinned = rows.withColumn("point", array_to_vector(sf.transform("point", lambda x: sf.greatest(x, sf.lit(0.0)))))
    settings = {"raw": thinned, "label": "height", "weight": "weight", "unit_norm": False}
    whole, sparse = prepared("whole", **settings), prepared("thin", sparse=True, task="regression", **settings)
    assert sparse.input.kind == "sparse" and sparse.card.labels is None
    sparse.verify()
    for size, batch_size in ((1, 7), (2, 16)):
        loaders = [Loader(each, "train", batch_size=batch_size, rank=size - 1, size=size) for each in (whole, sparse)]
        for ours, theirs in zip(*(loader.epoch(3) for loader in loaders), strict=True):
            assert theirs.inputs.dtype == ours.inputs.dtype and theirs.global_rows == ours.global_rows
            for name in ("inputs", "labels", "weights"):
                assert torch.equal(getattr(ours, name), getattr(theirs, name))


@pytest.fixture(scope="module")
def queries(spark: SparkSession) -> DataFrame:
    """Rows of 60 groups, of which the first is alone; relevance follows from two of three features."""
    random = np.random.default_rng(0)
    table = []
    for query in range(60):
        part = "validation" if query % 3 == 1 else "train"
        for x, y in random.normal(size=(random.integers(4, 12) if query else 1, 2)):
            relevance = float(np.clip(np.floor(1 + x + y + query % 3), 0, 4))
            features = [float(x), float(y), float(query % 7)]
            table.append((f"query {query}", features, relevance, float(1 + query % 2), part))
    return spark.createDataFrame(
        table, "query string, features array<double>, relevance double, weight double, part string"
    ).cache()


RANKED = {"label": "relevance", "task": "ranking", "qid": "query", "features": ["features"], "rows_per_group": 8}


def test_rows_are_ranked_within_their_groups(
    prepared: Callable[..., Dataset], train: Callable[..., tuple[TrainedModel, Tracking]], queries: DataFrame
) -> None:
    dataset = prepared("queries", queries, weight="weight", **RANKED)
    assert (dataset.rows("train"), dataset.rows("validation"), dataset.label_names) == (40, 20, ())
    dataset.verify()
    assert dataset.card.splits["train"].sparse.labels == queries.where("part = 'train'").count()
    read = list(Loader(dataset, "train", batch_size=7).epoch(0))
    found = {  # the rows of a group, with their relevance
        frozenset((*map(float, x), float(y)) for x, y in zip(inputs.tolist(), labels.tolist(), strict=False))
        for batch in read
        for labels, inputs in zip(
            batch.labels, batch.inputs.split((batch.labels >= 0).sum(dim=1).tolist()), strict=True
        )
    }
    raw = queries.where("part = 'train'").toPandas()
    expected = {
        frozenset((*map(float, np.float32(x)), y) for x, y in zip(rows.features, rows.relevance, strict=True))
        for _, rows in raw.groupby("query")
    }
    assert found == expected
    mean = raw.groupby("query").weight.first().mean()
    assert sorted(torch.cat([batch.weights for batch in read]).tolist()) == pytest.approx(
        sorted(raw.groupby("query").weight.first() / mean)
    )

    trained, tracking = train(dataset, epochs=12)
    assert {f"validation_{name}" for name in ("loss", "ndcg_at_10", "mean_reciprocal_rank")} == trained.metrics.keys()
    assert trained.metrics["validation_ndcg_at_10"] > 0.9
    client = MlflowClient(tracking.uri)
    pictures = {file.path for file in client.list_artifacts(trained.run_id)}
    assert {"loss.png", "ndcg_at_10.png", "mean_reciprocal_rank.png", "ndcg_validation.png"} <= pictures
    assert client.get_metric_history(trained.run_id, "step_ndcg_at_10")
    assert trained.registered is not None and trained.registered.moved
    scored = sparkdl.score(queries, trained.model_uri, tracking=tracking)  # each row for itself
    assert scored.columns == [*queries.columns, "prediction"]
    groups = [rows for _, rows in scored.where("part = 'validation'").toPandas().groupby("query")]
    ndcg = [
        metrics.ndcg_score([2**rows.relevance - 1], [rows.prediction], k=10) if rows.relevance.any() else 1.0
        for rows in groups
    ]
    found = np.average(ndcg, weights=[rows.weight.iloc[0] for rows in groups])
    assert found == pytest.approx(trained.metrics["validation_ndcg_at_10"])
    with pytest.raises(ConfigError, match=r"train\.gradient_noise needs the gradients of single rows"):
        train(dataset, gradient_noise="fisher_diagonal")
    with pytest.raises(ConfigError, match=r"train\.label_smoothing works with the loss 'cross_entropy', not with"):
        train(dataset, label_smoothing=0.1)


def test_groups_that_cannot_be_ranked_within_are_refused(
    prepared: Callable[..., Dataset], queries: DataFrame, rows: DataFrame
) -> None:
    refused = {
        "the column 'query' is null in 1 rows": {
            "raw": queries.withColumn("query", sf.expr("nullif(query, 'query 0')")),
        },
        "'relevance' is NaN, negative or above 31 in [0-9]+ rows": {
            "raw": queries.withColumn("relevance", sf.expr("relevance - 1")),
        },
        "59 groups of the column 'query' have rows of different weight": {
            "raw": queries.withColumn("weight", sf.col("features")[0] ** 2),
            "weight": "weight",
        },
        "groups of the column 'query' have rows in several splits": {
            "raw": queries.withColumn("part", sf.expr("if(features[0] > 0, 'train', 'validation')")),
        },
        "1 groups of the column 'query' have more than 4,096 rows, the largest 5,000": {
            "raw": queries.select(sf.explode(sf.sequence(sf.lit(1), sf.lit(5000))), "*").where("query = 'query 0'"),
            "split": {"fractions": {}},
        },
        "'query' .qid. is double: a group is named by a whole number or a text": {
            "raw": queries.withColumn("query", sf.rand(0)),
        },
        "'query' is string, but ranking orders rows by how relevant they are": {
            "raw": queries.withColumn("number", sf.length("query")),
            "label": "query",
            "qid": "number",
        },
    }
    for number, (message, settings) in enumerate(refused.items()):
        with pytest.raises(DataError, match=message):
            prepared(f"refused-{number}", **(RANKED | settings))


def test_groups_are_the_same_however_rows_lie_and_whether_they_are_sparse(
    prepared: Callable[..., Dataset], queries: DataFrame
) -> None:
    settings = RANKED | {"split": Split(fractions={"validation": 0.3}), "unit_norm": False}
    thin = array_to_vector(sf.transform("features", lambda x: sf.greatest(x, sf.lit(0.0))))
    thinned = queries.withColumn("features", thin).cache()
    whole = prepared("whole groups", thinned, **settings)
    sparse = prepared("sparse groups", thinned.coalesce(1).orderBy("relevance"), sparse=True, **settings)
    assert (whole.input.kind, sparse.input.kind) == ("vector", "sparse")
    for ours, theirs in zip(*(Loader(each, "train", batch_size=7).epoch(3) for each in (whole, sparse)), strict=True):
        assert torch.equal(ours.inputs, theirs.inputs) and torch.equal(ours.labels, theirs.labels)
    held_out = sparkdl.split_rows(thinned, Prepare.model_validate({"output": "x", **settings}), "validation")
    assert held_out.count() == sparse.card.splits["validation"].sparse.labels
    assert held_out.select("query").distinct().count() == sparse.rows("validation") == 60 - sparse.rows("train")
    for each, message in ((whole, "is not sparse"), (sparse, "is for ranking")):
        with pytest.raises(DatasetError, match=f"{message}; prepare it with .* and without a `task`"):
            sparkdl.train_extreme(each)
