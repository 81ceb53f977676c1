"""A network as a stage of ``pyspark.ml``."""

from shutil import copy

import numpy as np
import pytest
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

from sparkdl import TorchEstimator, TorchModel
from sparkdl.errors import ConfigError, DataError, SparkdlError
from sparkdl.settings import AllReduceOptions, Train


@pytest.fixture(scope="module")
def points(spark):
    """Two clouds of points that a line separates."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 120)
    rows = [(*map(float, random.normal(size=2) + 3 * label), float(label)) for label in labels]
    frame = spark.createDataFrame(rows, "x double, y double, label double")
    return VectorAssembler(inputCols=["x", "y"], outputCol="features").transform(frame).cache()


@pytest.fixture
def estimator(tmp_path, empty_store):
    copy(empty_store, tmp_path / "mlflow.db")

    def estimator(**settings):
        defaults = {"epochs": 4, "batch_size": 8, "learning_rate": 0.005, "store": str(tmp_path / "store")}
        return TorchEstimator(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}", **(defaults | settings))

    return estimator


def accuracy(scored) -> float:
    return MulticlassClassificationEvaluator(metricName="accuracy").evaluate(scored)


def test_transform_adds_predictions_once_and_keeps_the_rows(estimator, points):
    model = estimator().fit(points)
    scored = model.transform(points)
    assert scored.columns == [*points.columns, "prediction", "probability"]
    assert scored.count() == points.count()
    assert accuracy(scored) > 0.9
    for taken, rows in {"prediction": scored, "Probability": points.withColumnRenamed("x", "Probability")}.items():
        with pytest.raises(DataError, match=f"have a column '{taken}' already"):
            model.transform(rows)


def test_arrays_of_numbers_do_as_well_as_vectors(estimator, points):
    arrays = points.withColumn("features", vector_to_array("features"))
    scored = estimator().fit(arrays).transform(arrays)
    assert scored.schema["features"] == arrays.schema["features"]
    assert accuracy(scored) > 0.9


def test_a_saved_model_predicts_the_same_after_loading(estimator, points, tmp_path):
    model = estimator(predictionCol="guess").fit(points)
    model.write().save(str(tmp_path / "model"))
    (tmp_path / "mlflow.db").unlink()  # the saved model needs no tracking server
    loaded = TorchModel.load(str(tmp_path / "model"))
    assert loaded.transform(points).select("guess").collect() == model.transform(points).select("guess").collect()


def test_an_estimator_saves_and_loads_with_its_settings(estimator, tmp_path):
    for name, strategy in {
        "default": {},
        "bare": {"strategy": "allreduce"},
        "own": {"strategy": AllReduceOptions()},
    }.items():
        estimator(epochs=7, **strategy).write().save(str(tmp_path / name))
        loaded = TorchEstimator.load(str(tmp_path / name))
        assert loaded.getOrDefault(loaded.epochs) == 7
        assert Train(strategy=loaded.getOrDefault(loaded.strategy)) == Train()


def test_it_works_inside_a_pipeline_that_saves_and_loads(estimator, points, tmp_path):
    scaler = StandardScaler(inputCol="features", outputCol="scaled")
    model = Pipeline(stages=[scaler, estimator(featuresCol="scaled")]).fit(points)
    model.write().save(str(tmp_path / "pipeline"))
    assert accuracy(PipelineModel.load(str(tmp_path / "pipeline")).transform(points)) > 0.9


def test_a_grid_search_that_fits_two_at_once_finds_the_better_setting(estimator, points):
    network = estimator()
    search = CrossValidator(
        estimator=network,
        estimatorParamMaps=ParamGridBuilder().addGrid(network.learning_rate, [1e-9, 0.005]).build(),
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
        numFolds=2,
        seed=0,
        parallelism=2,
    )
    found = search.fit(points)
    assert found.avgMetrics[1] > 0.9 > found.avgMetrics[0]


def test_an_unknown_setting_is_an_error_at_once():
    with pytest.raises(ValueError, match=r"epoch\n.*not permitted"):
        TorchEstimator(epoch=3)


def test_a_missing_column_is_named(estimator, points):
    with pytest.raises(DataError, match="'pixels'"):
        estimator(featuresCol="pixels").fit(points)


def test_a_loaded_model_may_be_saved_where_it_came_from(estimator, points, tmp_path):
    estimator(epochs=1).fit(points).write().save(str(tmp_path / "model"))
    loaded = TorchModel.load(str(tmp_path / "model"))
    expected = loaded.transform(points).collect()
    loaded.write().overwrite().save(str(tmp_path / "model"))
    assert TorchModel.load(str(tmp_path / "model")).transform(points).collect() == expected


def test_probabilities_lie_at_their_labels_and_other_columns_may_have_any_name(estimator, points):
    renamed = points.selectExpr("features as `the.features`", "label * 3 + 1 as `the.label`", "x as `a.x`")
    model = estimator(featuresCol="the.features", labelCol="the.label").fit(renamed)
    scored = model.transform(renamed)
    assert scored.columns == [*renamed.columns, "prediction", "probability"]
    for row in scored.collect():
        assert len(row.probability) == 5 and sum(row.probability) == pytest.approx(1)
        assert row.prediction == row.probability.argmax() and row.probability[0] == row.probability[2] == 0


def test_labels_that_are_no_indices_have_probabilities_in_their_order(estimator, points):
    signs = points.withColumn("label", points["label"] * 2 - 1)
    scored = estimator(epochs=1).fit(signs).transform(signs).collect()
    assert {len(row.probability) for row in scored} == {2}
    assert all(row.prediction == (-1, 1)[row.probability.argmax()] for row in scored)


@pytest.mark.parametrize("kind", ["string", "boolean"])
def test_labels_that_could_only_be_predicted_as_null_are_refused_before_anything_is_written(
    estimator, points, tmp_path, kind
):
    other = points.withColumn("label", points["label"].cast(kind))
    with pytest.raises(DataError, match=f"label column 'label' is {kind}.*StringIndexer"):
        estimator().fit(other)
    assert not (tmp_path / "store").exists()


def test_no_copy_of_the_rows_is_left_when_training_fails(estimator, points, tmp_path):
    with pytest.raises(SparkdlError, match="nonsense"):
        estimator(model_options={"nonsense": 1}).fit(points)
    assert not list((tmp_path / "store").rglob("*.parquet"))


def test_a_password_in_the_tracking_uri_is_refused_because_it_would_be_saved():
    with pytest.raises(ConfigError, match="set MLFLOW_TRACKING_URI") as refused:
        TorchEstimator(tracking_uri="https://somebody:geheim@mlflow.example")
    assert "geheim" not in str(refused.value)
