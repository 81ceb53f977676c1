"""Networks as stages of ``pyspark.ml``."""

import gc
import json
from collections.abc import Callable
from shutil import copy, copytree

import mlflow
import numpy as np
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from pyspark.ml import Pipeline, PipelineModel
from pyspark.ml.evaluation import (
    BinaryClassificationEvaluator,
    Evaluator,
    MulticlassClassificationEvaluator,
    RegressionEvaluator,
)
from pyspark.ml.feature import StandardScaler, VectorAssembler
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.ml.tuning import CrossValidator, ParamGridBuilder
from pyspark.sql import functions as sf
from sklearn.metrics import ndcg_score

import sparkdl
from sparkdl import (
    TorchClassificationModel,
    TorchClassifier,
    TorchEstimator,
    TorchRanker,
    TorchRankingModel,
    TorchRegressionModel,
    TorchRegressor,
)
from sparkdl.errors import ConfigError, DataError, ModelError, SparkdlError
from sparkdl.estimator.preparation import PreparedRows
from sparkdl.settings import AllReduceOptions, Tracking, Train
from sparkdl.tracking.store import connect, experiment_id


@pytest.fixture(scope="module")
def points(spark):
    """Two clouds of points that a line separates, and a number that is linear in them."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 120)
    places = [(*map(float, random.normal(size=2) + 3 * label), float(label)) for label in labels]
    rows = [(x, y, label, 100 + 3 * x - 2 * y, number % 5 == 0) for number, (x, y, label) in enumerate(places)]
    frame = spark.createDataFrame(rows, "x double, y double, label double, height double, held_out boolean")
    return VectorAssembler(inputCols=["x", "y"], outputCol="features").transform(frame).cache()


def settings_in(folder, empty_store):
    copy(empty_store, folder / "mlflow.db")
    quick = {"epochs": 4, "batch_size": 8, "learning_rate": 0.005, "model_options": {"hidden": [32]}}
    return quick | {"store": str(folder / "store"), "tracking_uri": f"sqlite:///{folder / 'mlflow.db'}"}


@pytest.fixture
def settings(tmp_path, empty_store):
    return settings_in(tmp_path, empty_store)


@pytest.fixture(scope="module")
def classifier(points, tmp_path_factory, empty_store):
    """Fitted on the points, of which a fifth decides which epoch was best."""
    folder = tmp_path_factory.mktemp("classifier")
    settings = settings_in(folder, empty_store)
    return TorchClassifier(validationIndicatorCol="held_out", **settings).fit(points)


@pytest.fixture(scope="module")
def saved(classifier, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model"
    classifier.write().save(str(path))
    return path


def accuracy(scored) -> float:
    return MulticlassClassificationEvaluator(metricName="accuracy").evaluate(scored)


def test_transform_adds_predictions_once_and_keeps_the_rows(classifier, points):
    scored = classifier.transform(points)
    assert scored.columns == [*points.columns, "rawPrediction", "probability", "prediction"]
    assert scored.count() == points.count()
    for taken, rows in {"prediction": scored, "Probability": points.withColumnRenamed("x", "Probability")}.items():
        with pytest.raises(DataError, match=f"already have a column '({taken}|rawPrediction)'"):
            classifier.transform(rows)
    renamed = points.selectExpr("features", "x as `a.x`", "y as features_assembled", "label as top_k")
    assert classifier.transform(renamed).count() == points.count()


def test_evaluators_work_as_they_come(classifier, points):
    scored = classifier.transform(points).cache()
    assert accuracy(scored) > 0.9
    assert MulticlassClassificationEvaluator(metricName="logLoss").evaluate(scored) < 0.5
    area = BinaryClassificationEvaluator().evaluate(scored)  # which reads rawPrediction
    assert area == pytest.approx(BinaryClassificationEvaluator(rawPredictionCol="probability").evaluate(scored))
    assert area > 0.97
    for row in scored.collect():
        margin = row.rawPrediction[1] - row.rawPrediction[0]
        assert row.rawPrediction[1] == pytest.approx(margin / 2)
        assert row.probability[1] == pytest.approx(1 / (1 + np.exp(-margin)))
        assert row.prediction == row.probability.argmax()


def test_arrays_of_numbers_and_several_columns_say_the_same_as_vectors(classifier, points):
    expected = [row.prediction for row in classifier.transform(points).collect()]
    arrays = points.withColumn("features", vector_to_array("features"))
    scored = classifier.transform(arrays)
    assert scored.schema["features"] == arrays.schema["features"]
    assert [row.prediction for row in scored.collect()] == expected
    several = classifier.copy().setFeaturesCol(["x", "y"])
    assert [row.prediction for row in several.transform(points.drop("features")).collect()] == expected
    fields = points.selectExpr("struct(x) as place", "map('y', y) as places")
    nested = classifier.copy().setFeaturesCol(["place.x", "places.y"])
    assert [row.prediction for row in nested.transform(fields).collect()] == expected


def test_a_list_of_one_column_of_numbers_is_a_list_of_columns(settings, points, tmp_path):
    network = TorchClassifier(featuresCol=["x"], **settings | {"epochs": 1})
    network.write().save(str(tmp_path / "network"))
    model = TorchClassifier.load(str(tmp_path / "network")).fit(points)
    model.write().save(str(tmp_path / "model"))
    loaded = TorchClassificationModel.load(str(tmp_path / "model"))
    assert loaded.getFeaturesCols() == ["x"]
    assert loaded.transform(points).collect() == model.transform(points).collect()


def test_the_summary_tells_each_epoch_and_the_rows_that_a_column_names_decide_which_was_best(classifier, points, saved):
    summary = classifier.trainingSummary
    assert len(summary.history) == len(summary.objective_history) == 4
    held_out = accuracy(classifier.transform(points.where("held_out")))
    assert summary.metrics["validation_accuracy"] == pytest.approx(held_out)
    assert TorchClassificationModel.load(str(saved)).trainingSummary == summary


def test_a_saved_model_predicts_the_same_after_loading_and_may_be_saved_where_it_came_from(
    classifier, points, saved, tmp_path
):
    expected = classifier.transform(points).collect()
    copytree(saved, tmp_path / "model")
    loaded = TorchClassificationModel.load(str(tmp_path / "model"))  # it needs no tracking server
    assert loaded.uid and loaded.transform(points).collect() == expected
    loaded.write().overwrite().save(str(tmp_path / "model"))
    assert TorchClassificationModel.load(str(tmp_path / "model")).transform(points).collect() == expected


def changed_metadata(path, change: Callable[[dict], None]) -> None:
    (file,) = [each for each in (path / "metadata").iterdir() if each.name.startswith("part-")]
    metadata = json.loads(file.read_text())
    change(metadata)
    file.write_text(json.dumps(metadata) + "\n")
    (path / "metadata" / f".{file.name}.crc").unlink()


def test_what_a_newer_version_has_saved_is_refused_in_one_line(saved, settings, tmp_path):
    copytree(saved, tmp_path / "model")
    TorchRegressor(**settings).write().save(str(tmp_path / "estimator"))
    for name, kind in {"model": TorchClassificationModel, "estimator": TorchRegressor}.items():
        changed_metadata(tmp_path / name, lambda metadata: metadata["sparkdl"].update(format=99))
        with pytest.raises(ModelError, match=r"saved in format 99 by a newer version of sparkdl.*up to \d; load it"):
            kind.load(str(tmp_path / name))


def test_what_was_saved_under_the_first_names_is_loaded(classifier, points, saved, tmp_path):
    copytree(saved, tmp_path / "model")

    def as_then(metadata):
        del metadata["sparkdl"]
        metadata["class"] = "sparkdl.estimator.TorchModel"
        metadata["paramMap"] = {"featuresCol": "features", "predictionCol": "guess", "probabilityCol": "likely"}
        metadata["defaultParamMap"] = {}

    changed_metadata(tmp_path / "model", as_then)
    stage = PipelineModel(stages=[TorchClassificationModel.load(str(tmp_path / "model"))])
    assert stage.transform(points).columns == [*points.columns, "rawPrediction", "likely", "guess"]
    assert TorchEstimator is sparkdl.TorchClassifier and sparkdl.TorchModel is TorchClassificationModel


def test_an_estimator_saves_and_loads_with_its_settings(settings, tmp_path):
    for name, strategy in {
        "default": {},
        "bare": {"strategy": "allreduce"},
        "own": {"strategy": AllReduceOptions()},
    }.items():
        TorchClassifier(**settings | {"epochs": 7}, featuresCol=["a", "b"], **strategy).write().save(
            str(tmp_path / name)
        )
        loaded = TorchClassifier.load(str(tmp_path / name))
        loaded.write().overwrite().save(str(tmp_path / name))
        loaded = TorchClassifier.load(str(tmp_path / name))
        assert loaded.getOrDefault(loaded.epochs) == 7 and loaded.getFeaturesCols() == ["a", "b"]
        assert Train(strategy=loaded.getOrDefault(loaded.strategy)) == Train()


def test_texts_are_classes_in_a_pipeline_that_is_saved_and_rows_weigh_what_a_column_says(settings, points, tmp_path):
    """All rows of one class lie, and weigh nothing."""
    named = points.selectExpr("features", "if(label = 1, 'right', 'left') as side", "1.0 as weight").union(
        points.selectExpr("features", "if(label = 1, 'left', 'right') as side", "0.0 as weight")
    )
    scaler = StandardScaler(inputCol="features", outputCol="scaled")
    network = TorchClassifier(featuresCol="scaled", labelCol="side", weightCol="weight", **settings)
    model = Pipeline(stages=[scaler, network]).fit(named)
    assert model.stages[1].labels == ["left", "right"]
    model.write().save(str(tmp_path / "pipeline"))
    scored = PipelineModel.load(str(tmp_path / "pipeline")).transform(named.where("weight > 0")).collect()
    assert sum(row.prediction == row.side for row in scored) > 0.9 * len(scored)
    assert all(row.prediction == ("left", "right")[row.probability.argmax()] for row in scored)


def test_a_number_is_predicted_from_sparse_vectors(settings, points, tmp_path):
    width = 5_000  # of which a batch is made whole, and no row before
    spread = sf.udf(lambda x, y: Vectors.sparse(width, {0: x, width - 1: y}), VectorUDT())
    wide = points.withColumn("features", spread("x", "y"))
    quick = {"epochs": 8, "learning_rate": 0.02, "model_options": {"hidden": [8]}}
    model = TorchRegressor(labelCol="height", sparse=True, **settings | quick).fit(wide)
    scored = model.transform(wide)
    assert scored.columns == [*wide.columns, "prediction"]
    assert RegressionEvaluator(labelCol="height", metricName="r2").evaluate(scored) > 0.8
    model.write().save(str(tmp_path / "model"))
    loaded = TorchRegressionModel.load(str(tmp_path / "model"))
    assert loaded.transform(wide).select("prediction").collect() == scored.select("prediction").collect()


@pytest.fixture(scope="module")
def results(spark):
    """What 40 queries have found, how relevant it is, and which half a query is in; the first one is held out."""
    random = np.random.default_rng(0)
    rows = [
        (f"query {query}", float(x), float(y), min(max(int(1 + x - y + query % 2), 0), 4), query % 2)
        for query in range(40)
        for x, y in random.normal(size=(random.integers(5, 15), 2))
    ]
    frame = spark.createDataFrame(rows, "query string, x double, y double, relevance int, fold int")
    return frame.withColumn("held_out", sf.col("fold") == 0).cache()


class NDCG(Evaluator):
    """The mean over groups, by scikit-learn."""

    def _evaluate(self, dataset) -> float:
        groups = [rows for _, rows in dataset.toPandas().groupby("query")]
        found = [ndcg_score([2**rows.relevance - 1], [rows.prediction], k=10) for rows in groups]
        return float(np.mean([each if rows.relevance.any() else 1 for each, rows in zip(found, groups, strict=True)]))


RANKER = {"labelCol": "relevance", "qidCol": "query", "validationIndicatorCol": "held_out"}


def test_rows_are_ranked_within_groups_in_a_pipeline_that_is_saved_and_scored_without_groups(
    settings, results, tmp_path
):
    assembler = VectorAssembler(inputCols=["x", "y"], outputCol="features")
    ranker = TorchRanker(**RANKER, contributionsCol="why", **settings | {"epochs": 10, "learning_rate": 0.02})
    model = Pipeline(stages=[assembler, ranker]).fit(results)
    model.write().save(str(tmp_path / "pipeline"))
    loaded = PipelineModel.load(str(tmp_path / "pipeline"))
    assert isinstance(loaded.stages[1], TorchRankingModel)
    metrics = loaded.stages[1].trainingSummary.metrics
    scored = loaded.transform(results)
    assert scored.columns == [*results.columns, "features", "prediction", "why"]
    assert metrics["validation_ndcg_at_10"] == pytest.approx(NDCG().evaluate(scored.where("held_out")))
    assert metrics["validation_ndcg_at_10"] > 0.9
    assert metrics["validation_mean_reciprocal_rank"] > 0.9
    assert all(sum(row.why) == pytest.approx(row.prediction, abs=0.1) for row in scored.collect())
    alone = loaded.transform(results.select("x", "y"))
    assert alone.select("prediction").collect() == scored.select("prediction").collect()


def test_a_search_over_rankers_whose_folds_are_of_whole_groups_finds_the_better_setting(settings, results):
    columns = {"featuresCol": ["x", "y"], "labelCol": "relevance", "qidCol": "query"}
    ranker = TorchRanker(**columns, num_ranks=1, validation=0.3, **settings | {"epochs": 6})
    search = CrossValidator(
        estimator=ranker,
        estimatorParamMaps=ParamGridBuilder().addGrid(ranker.learning_rate, [1e-9, 0.02]).build(),
        evaluator=NDCG(),
        numFolds=2,
        foldCol="fold",
        parallelism=2,
    )
    found = search.fit(results)
    assert found.avgMetrics[1] > 0.9 > found.avgMetrics[0]


def test_the_mean_stands_in_for_missing_values_and_is_saved_with_the_model(settings, points, tmp_path):
    holes = "case when number % 5 = 0 then {} when number % 5 = 1 then null when number % 5 = 2 then {} else x end as x"
    numbered = points.withColumn("number", sf.monotonically_increasing_id())
    rows = numbered.selectExpr(holes.format("double('NaN')", "-999.0"), "y", "label", "held_out", "x as known").cache()
    classifier = TorchClassifier(featuresCol=["x", "y"], missing=-999, **settings)
    model = classifier.copy().setParams(validationIndicatorCol="held_out").fit(rows)
    trained = rows.where("not held_out and x > -999 and not isnan(x)")
    assert model.means == pytest.approx(
        [trained.agg(sf.avg("x")).first()[0], rows.where("not held_out").agg(sf.avg("y")).first()[0]]
    )
    scored = model.transform(rows)
    assert scored.columns[:5] == rows.columns and accuracy(scored) > 0.8
    model.write().save(str(tmp_path / "model"))
    loaded = TorchClassificationModel.load(str(tmp_path / "model"))
    assert loaded.transform(rows).select("prediction").collect() == scored.select("prediction").collect()
    with pytest.raises(ConfigError, match="missing: values of sparse vectors"):
        classifier.copy().setParams(sparse=True).fit(rows)


def test_contributions_of_features_add_up_to_the_prediction(classifier, points):
    explaining = classifier.copy({classifier.contributionsCol: "why"})
    for row in explaining.transform(points).collect():
        assert len(row.why) == 3
        assert sum(row.why) == pytest.approx(row.rawPrediction[int(row.prediction)], abs=0.05)


def test_probabilities_lie_at_their_labels_and_columns_may_have_any_name(settings, points):
    renamed = points.selectExpr("features as `the.features`", "label * 3 + 1 as `the.label`", "x as `a.x`")
    network = TorchClassifier(featuresCol="the.features", labelCol="the.label", **settings | {"epochs": 1})
    scored = network.fit(renamed).transform(renamed)
    assert scored.columns == [*renamed.columns, "rawPrediction", "probability", "prediction"]
    for row in scored.collect():
        assert len(row.probability) == len(row.rawPrediction) == 5 and sum(row.probability) == pytest.approx(1)
        assert row.prediction == row.probability.argmax() and row.probability[0] == row.probability[2] == 0


def test_a_grid_search_that_fits_two_at_once_finds_the_better_setting_and_is_of_the_callers_run(
    settings, points, use_store
):
    network = TorchClassifier(num_ranks=1, **settings)
    search = CrossValidator(
        estimator=network,
        estimatorParamMaps=ParamGridBuilder().addGrid(network.learning_rate, [1e-9, 0.005]).build(),
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
        numFolds=2,
        seed=0,
        parallelism=2,
    )
    use_store(settings["tracking_uri"])
    with mlflow.start_run(experiment_id=experiment_id(client_of(settings), "the caller's")) as callers:
        found = search.fit(points)
    assert found.avgMetrics[1] > max(found.avgMetrics[0], 0.8)
    assert len(copies(settings)) == 3  # one for each fold, and one for the best
    fits = [run for run in runs(settings) if run.info.run_id != callers.info.run_id]
    assert [run.data.tags["mlflow.parentRunId"] for run in fits] == [callers.info.run_id] * 5


def client_of(settings) -> MlflowClient:
    return connect(Tracking(uri=settings["tracking_uri"]))


def runs(settings) -> list[Run]:
    client = client_of(settings)
    return list(client.search_runs([each.experiment_id for each in client.search_experiments()]))


def copies(settings) -> set[str]:
    """Where the prepared rows lay that runs have been trained on."""
    return {run.data.params["dataset"] for run in runs(settings) if "dataset" in run.data.params}


def test_the_share_to_validate_with_is_a_sample_of_a_table_of_categories(spark, tmp_path):
    """Whoever predicts the commoner class is right in as many of its rows as of all."""
    random = np.random.default_rng(0)
    rows = [(*map(float, row), int(one)) for *row, one in random.random((5000, 7)) < [0.5] * 6 + [0.7]]
    table = spark.createDataFrame(rows, ", ".join(f"x{place} double" for place in range(6)) + ", label int")
    network = TorchClassifier(featuresCol=[f"x{place}" for place in range(6)], store=str(tmp_path), num_ranks=1)
    prepared = PreparedRows(table, network._preparation())
    held_out = prepared.dataset.card.splits["validation"]
    assert held_out.rows == pytest.approx(500, abs=90)
    assert held_out.class_counts[1] / held_out.rows == pytest.approx(0.7, abs=0.08)


def test_fits_that_differ_in_training_alone_share_a_copy_of_the_rows_and_equal_single_fits(settings, points, tmp_path):
    network = TorchClassifier(num_ranks=1, **settings | {"epochs": 1})
    maps = [{network.learning_rate: 0.01}, {network.learning_rate: 0.02, network.optimizer: "sgd"}]
    models = network.fit(points, maps)
    assert len(copies(settings)) == 1
    assert not list((tmp_path / "store").rglob("*.parquet"))
    single = network.fit(points, maps[1])
    assert models[1].trainingSummary.metrics == single.trainingSummary.metrics
    assert models[1].transform(points).collect() == single.transform(points).collect()


def test_what_decides_about_the_rows_is_not_shared():
    network = TorchClassifier(missing=float("nan"))
    as_it_is = network._preparation()
    same = {"learning_rate": 0.5, "epochs": 9, "batch_size": 8, "predictionCol": "guess", "experiment": "another"}
    other = {"seed": 1, "num_ranks": 1, "validation": 0.2, "missing": 0.0, "sparse": True, "store": "elsewhere"}
    other |= dict.fromkeys(("featuresCol", "labelCol", "weightCol", "validationIndicatorCol"), "another")
    other |= {"featuresCols": ["one", "another"]}
    for name, value in (same | other).items():
        changed = network.copy({network.getParam(name): value})._preparation()
        assert (changed == as_it_is) == (name in same), name
    assert TorchRegressor(missing=network.getOrDefault(network.missing))._preparation() != as_it_is
    assert TorchRanker(qidCol="query")._preparation() == TorchRanker(qidCol="query")._preparation()
    assert TorchRanker(qidCol="query")._preparation() != TorchRanker()._preparation()


def test_a_shared_copy_goes_with_the_last_fit_though_it_fails_and_with_an_iterator_that_is_left(
    settings, points, tmp_path
):
    network = TorchClassifier(num_ranks=1, **settings | {"epochs": 1})
    maps = [{}, {network.model_options: {"nonsense": 1}}]

    def files():
        return list((tmp_path / "store").rglob("dataset/**/*.parquet"))

    fits = network.fitMultiple(points, maps)
    assert not files()  # nobody has asked yet
    assert next(fits)[0] == 0 and files()
    with pytest.raises(SparkdlError, match="nonsense"):
        next(fits)
    assert not files() and not list(fits)
    left = network.fitMultiple(points, maps[::-1])
    with pytest.raises(SparkdlError, match="nonsense") as failed:
        next(left)
    assert files()
    del failed, left
    gc.collect()
    assert not files()


# bad input


def test_an_unknown_setting_is_an_error_at_once():
    with pytest.raises(ConfigError, match=r"^TorchClassifier has no parameter 'epoch'; did you mean 'epochs'\?$"):
        TorchClassifier(epoch=3)
    with pytest.raises(ConfigError, match=r"has no parameter 'numRanks'; did you mean 'num_ranks'\?$"):
        TorchRegressor(numRanks=3)
    with pytest.raises(ConfigError, match=r"^TorchRegressor has no parameter 'qidCol'"):
        TorchRegressor(qidCol="query")
    with pytest.raises(ConfigError, match=r"^TorchRegressor: epochs: input should be greater than 0"):
        TorchRegressor(epochs=0)
    with pytest.raises(TypeError, match=r'"num_ranks"\. It must be a whole number of at least 1, not 0$'):
        TorchRegressor(num_ranks=0)
    with pytest.raises(TypeError, match=r'"validation"\. It must be a share, at least 0 and below 1, not 10$'):
        TorchRegressor(validation=10)


@pytest.mark.parametrize(
    ("kind", "columns", "message"),
    [
        (TorchClassifier, {"featuresCol": "pixels"}, r"no column 'pixels' \(featuresCol\); there are x, y"),
        (
            TorchClassifier,
            {"featuresCol": "featurs"},
            r"no column 'featurs' \(did you mean 'features'\?\) \(featuresCol\)",
        ),
        (TorchClassifier, {"featuresCol": ["x", "word"]}, r"'word' \(featuresCol\) is string; it must be a vector"),
        (TorchClassifier, {"labelCol": "features"}, r"'features' \(labelCol\) is vector: a class is a whole number"),
        (TorchRegressor, {"labelCol": "word"}, r"'word' \(labelCol\) is string: regression predicts a number"),
        (TorchRegressor, {"weightCol": "word"}, r"'word' \(weightCol\) is string: a weight is a number"),
        (TorchRegressor, {"weightCol": "minus"}, "weight column 'weight' is negative, infinite or null in 120 rows"),
        (TorchRegressor, {"validationIndicatorCol": "x"}, r"'x' \(validationIndicatorCol\) is double: true for rows"),
        (TorchRanker, {}, r"no column 'qid' \(qidCol\); there are x, y"),
        (TorchRanker, {"qidCol": "x"}, r"'x' \(qidCol\) is double: a group is named by a whole number or a text"),
        (TorchRanker, {"labelCol": "word"}, r"'word' \(labelCol\) is string: ranking orders rows by how relevant"),
        (
            TorchRanker,
            {"qidCol": "word", "validationIndicatorCol": "held_out"},
            "1 groups of the column 'qid' have rows in several splits; a group belongs into one",
        ),
        (TorchClassifier, {"labelCol": "height"}, "has 120 rows that are not whole numbers .*`task: regression`"),
    ],
)
def test_columns_that_cannot_be_learned_from_are_named_before_anything_is_written(
    settings, points, tmp_path, kind, columns, message
):
    rows = points.selectExpr("*", "'a' as word", "-1.0 as minus")
    with pytest.raises(DataError, match=message):
        kind(num_ranks=2, **settings, **columns).fit(rows)
    assert not list((tmp_path / "store").rglob("*.parquet"))


def test_no_copy_of_the_rows_is_left_when_training_fails(settings, points, tmp_path):
    with pytest.raises(SparkdlError, match="nonsense"):
        TorchClassifier(**settings | {"model_options": {"nonsense": 1}}).fit(points)
    assert not list((tmp_path / "store").rglob("*.parquet"))


def test_a_password_in_the_tracking_uri_is_refused_because_it_would_be_saved():
    with pytest.raises(ConfigError, match="set MLFLOW_TRACKING_URI") as refused:
        TorchClassifier(tracking_uri="https://somebody:geheim@mlflow.example")
    assert "geheim" not in str(refused.value)
