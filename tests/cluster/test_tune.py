"""A search on real ranks: several trials at a time, stopped, paused, failed and continued."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from shutil import copy

import numpy as np
import pytest
import yaml
from mlflow import MlflowClient
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.tuning import CrossValidatorModel

import sparkdl
from benchmarks.standalone import numbered_threads, standalone_cluster
from sparkdl import Cluster, Prepare, Split, main
from sparkdl.config import load_settings
from sparkdl.errors import ConfigError, ModelError, NotEnoughSlotsError
from sparkdl.settings import Settings
from sparkdl.training.attempts import RunStopped
from sparkdl.tuning.trial_datasets import TrialDatasets
from sparkdl.tuning.trial_records import TrialRecord
from sparkdl.tuning.trial_run import TrialRunner

ROOT = Path(sparkdl.__file__).parents[1]


@pytest.fixture(scope="module")
def dataset(spark, tmp_path_factory):
    random = np.random.default_rng(0)
    labels = random.integers(0, 3, 240)
    points = random.normal(size=(240, 4)) + 2 * np.eye(4)[labels]
    rows = [(*map(float, point), int(label)) for point, label in zip(points, labels, strict=True)]
    settings = Prepare(output=str(tmp_path_factory.mktemp("data") / "points"), rows_per_group=16)
    split = Split(fractions={"validation": 0.25, "test": 0.2})
    raw = spark.createDataFrame(rows, "a double, b double, c double, d double, label int")
    return sparkdl.prepare(raw, settings.model_copy(update={"split": split}))


@pytest.fixture
def search(spark, dataset, tmp_path, empty_store):
    """Search with these settings: what came out, and the runs that MLflow has of it."""
    copy(empty_store, tmp_path / "mlflow.db")
    uri = f"sqlite:///{tmp_path}/mlflow.db"

    def run(tune, train=None, cluster=None, **tracking):
        settings = Settings(
            train={"model": "mlp", "epochs": 1, "batch_size": 32, "run_dir": f"{tmp_path}/runs", **(train or {})},
            cluster=cluster or Cluster(num_ranks=1),
            tracking={"uri": uri, "spool": f"{tmp_path}/spool", **tracking},
            tune=tune,
        )
        tuned = sparkdl.tune(settings, dataset=dataset, spark=spark)
        client = MlflowClient(uri)
        runs = client.search_runs([each.experiment_id for each in client.search_experiments()])
        return tuned, {each.data.tags.get("sparkdl.trial", each.info.run_id): each for each in runs}

    return run


def test_a_search_trains_with_its_best_settings_and_mlflow_has_one_parent_with_all_trials(search, tmp_path):
    space = {"train.learning_rate": {"log": [1e-5, 1e-1]}, "train.model_options.hidden": [[4], [32, 16]]}
    tuned, runs = search({"space": space, "trials": 4}, register_as="tuned")
    assert [record.state for record in tuned.trials] == ["finished"] * 4
    values = [record.outcome(tuned.figures)[0] for record in tuned.trials]
    assert tuned.best[0].outcome(tuned.figures)[0] == max(values) and tuned.figures == ("validation_accuracy",)
    for record in tuned.trials:
        child = runs[str(record.number)]
        assert child.data.tags["mlflow.parentRunId"] == tuned.run_id
        assert float(child.data.params["train.learning_rate"]) == record.values["train.learning_rate"]
        assert child.data.metrics["validation_accuracy"] == pytest.approx(values[record.number])
    assert runs[tuned.trained.run_id].data.tags["mlflow.parentRunId"] == tuned.run_id
    assert tuned.trained.registered.version == 1
    kept = [path.name for path in Path(tuned.settings_file).parent.glob("trials/*") if path.is_dir()]
    assert kept == [f"{tuned.best[0].number:05d}"]
    file = yaml.safe_load(Path(tuned.settings_file).read_text())
    assert file["train"]["learning_rate"] == tuned.best[0].values["train.learning_rate"]
    assert load_settings(tuned.settings_file).train.model_options == tuned.settings.train.model_options
    pictures = {"history.png", "importance.png", "parallel_coordinates.png"}
    assert files_of(tuned.run_id, tmp_path) >= {"best.yaml"} | pictures


def files_of(run_id, folder):
    """What MLflow has beside a run's figures."""
    return {file.path for file in MlflowClient(f"sqlite:///{folder}/mlflow.db").list_artifacts(run_id)}


@pytest.mark.parametrize(
    ("tune", "cluster", "error", "told"),
    [
        ({"figures": "validation_r2"}, 1, ConfigError, r"tune\.figures: no trial has validation_r2"),
        ({}, 64, NotEnoughSlotsError, "64 ranks were requested"),
        ({"space": {}}, 1, ConfigError, r"tune\.space is empty"),
        ({"space": {"train.strategy": ["allreduce", "downpour"]}, "stopping": "asha"}, 1, ConfigError, "downpour end"),
    ],
)
def test_what_no_trial_could_have_is_an_error_before_the_first(search, tmp_path, tune, cluster, error, told):
    with pytest.raises(error, match=told):
        search({"space": {"train.learning_rate": [0.1]}} | tune, cluster=Cluster(num_ranks=cluster, slot_timeout=0))
    assert not (tmp_path / "runs").exists()


def test_a_trial_that_pauses_goes_on_from_its_checkpoint_and_one_that_is_stopped_leaves_its_slots(
    spark, dataset, tmp_path
):
    train = {"model": "mlp", "epochs": 1000, "run_dir": str(tmp_path)}
    settings = Settings(train=train, cluster={"num_ranks": 2}, tune={"space": {"train.learning_rate": [0.01]}})
    runner = TrialRunner(TrialDatasets(settings, spark, dataset), spark=spark, folder=str(tmp_path))
    record, stop, histories, left = TrialRecord(0, {"train.learning_rate": 0.01}, until=1), threading.Event(), [], []
    runner.run(record, stop=stop, on_epoch=histories.append)
    record.until = 2
    runner.run(record, stop=stop, on_epoch=histories.append)
    assert len(histories[-1]) == 2 and histories[-1][0] == histories[0][0]  # seconds and all
    record.until = 1000

    def end_after_three_epochs(history):
        histories.append(history)
        if len(history) == 3 and not left:
            left.append(time.monotonic())
            stop.set()

    with pytest.raises(RunStopped):
        runner.run(record, stop=stop, on_epoch=end_after_three_epochs)
    assert time.monotonic() - left[0] < 3  # a second, where nothing else computes
    stop.clear()
    record.until = 4
    runner.run(record, stop=stop, on_epoch=histories.append)
    assert len(histories[-1]) == 4 and histories[-1][0] == histories[0][0]


def test_a_population_takes_over_checkpoints_and_ends_with_the_model_of_its_best_member(search):
    space = {"train.learning_rate": [1e-7, 1e-6, 0.05], "train.weight_decay": {"linear": [0, 0.1]}}
    population = {"size": 3, "share": 0.34}
    tuned, runs = search({"space": space, "population": population, "sampler": "random"}, {"epochs": 3})
    assert [(record.state, record.epochs) for record in tuned.trials] == [("finished", 3)] * 3
    moved = [record for record in tuned.trials if record.lineage]
    assert moved and "sparkdl.lineage" in runs[str(moved[0].number)].data.tags
    assert tuned.trained.metrics["validation_accuracy"] == pytest.approx(tuned.best[0].outcome(tuned.figures)[0])
    assert len(tuned.trained.history) == 3


def test_a_trial_that_fails_has_its_reason_and_the_third_of_a_kind_ends_the_search(search):
    space = {"train.model_options.hidden": [[8], "wide", "wider", "widest"]}
    tuned, runs = search({"space": space, "sampler": "grid", "trials": 3, "refit": "none"})
    assert [record.state for record in tuned.trials] == ["finished", "failed", "failed"]
    assert runs["1"].info.status == "FAILED" and "mlp" in runs["1"].data.tags["sparkdl.reason"]
    with pytest.raises(ModelError, match=r"the search has ended, since 3 trials failed in this way: 1, 2, 3"):
        search({"space": space, "sampler": "grid", "refit": "none"})


def interrupt_at(folder, pattern):
    """As soon as there is such a file."""

    def interrupt():
        while not list(folder.glob(pattern)):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


def test_an_interrupted_search_goes_on_and_no_trial_counts_twice(search, tmp_path):
    tune = {"space": {"train.learning_rate": {"log": [1e-4, 1e-1]}}, "trials": 4, "refit": "none"}
    interrupt_at(tmp_path, "runs/*/trials/00002/step-*.json")
    with pytest.raises(KeyboardInterrupt):
        search(tune, {"epochs": 20})
    (folder,) = (path.parent for path in tmp_path.glob("runs/*/search.json"))
    before = {path.name: path.read_text() for path in folder.glob("trials/*.json") if '"finished"' in path.read_text()}
    tuned, runs = search({**tune, "resume": "auto"}, {"epochs": 20})
    assert tuned.run_id == folder.name and [record.epochs for record in tuned.trials] == [20] * 4
    assert all((folder / "trials" / name).read_text() == text for name, text in before.items()) and before
    assert len([run for run in runs.values() if "sparkdl.trial" in run.data.tags]) == len(runs) - 1 == 4
    with pytest.raises(ConfigError, match=r"cannot go on with another tune\.space"):
        search({**tune, "space": {"train.learning_rate": [0.1]}, "resume": folder.name}, {"epochs": 20})


def test_a_search_that_ended_in_its_last_run_goes_on_with_that_run_and_its_time_counts(search, tmp_path):
    tune = {"space": {"train.learning_rate": [0.01]}, "trials": 1, "refit": "all"}
    interrupt_at(tmp_path, "runs/*/last/*/step-*.json")
    with pytest.raises(KeyboardInterrupt):
        search(tune, {"epochs": 100})
    (record,) = tmp_path.glob("runs/*/search.json")
    spent = json.loads(record.read_text())["seconds"]
    tuned, runs = search({**tune, "trials": 2, "seconds": spent, "resume": "auto"}, {"epochs": 100})
    (last,) = tmp_path.glob("runs/*/last/*")
    assert last.name == tuned.trained.run_id and len(tuned.trained.history) == 100
    assert {*runs} == {"0", tuned.run_id, last.name}


def test_the_command_searches_and_trials_that_prepare_alike_share_a_dataset(spark, tmp_path, empty_store, capsys):
    copy(empty_store, tmp_path / "mlflow.db")
    rows = spark.range(120).selectExpr("double(id % 7) as a", "double(id) as b", "int(id % 2) as label")
    rows.write.parquet(f"{tmp_path}/raw")
    scaled = [{"kind": "standardise", "columns": ["a", "b"]}]
    tune = {
        "space": {"prepare.stages": [[], scaled], "train.learning_rate": [0.1, 0.01]},
        "sampler": "grid",
        "figures": ["validation_accuracy", "parameters"],
        "refit": "all",
    }
    conf = {
        "prepare": {"source": {"format": "parquet", "path": f"{tmp_path}/raw"}, "output": f"{tmp_path}/unused"},
        "train": {"run_dir": f"{tmp_path}/runs"},
        "cluster": {"num_ranks": 1},
        "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db", "spool": f"{tmp_path}/spool"},
        "tune": tune,
    }
    (tmp_path / "conf.yaml").write_text(yaml.safe_dump(conf))
    with pytest.raises(SystemExit) as ending:
        main(["tune", f"{tmp_path}/conf.yaml"])
    printed = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines() if "  " in line)
    assert ending.value.code == 0 and printed["trials"].strip() == "4: 4 finished"
    assert len(list((tmp_path / "runs" / "datasets").iterdir())) == 2 and not (tmp_path / "unused").exists()
    best = load_settings(printed["settings"].strip()).prepare
    assert not best.stages or best.stages[0].columns == ["a", "b"]
    assert "pareto_front.png" in files_of(Path(printed["settings"].strip()).parent.name, tmp_path)
    # Rows for validation were trained on in the end.
    assert "test accuracy" in printed and "validation accuracy" not in printed


def test_slots_that_come_have_further_trials_and_a_trial_whose_slots_go_has_others(
    dataset, tmp_path, tmp_path_factory, empty_store
):
    copy(empty_store, tmp_path / "mlflow.db")
    conf = {
        "train": {"dataset": dataset.path, "run_dir": f"{tmp_path}/runs", "epochs": 100, "checkpoint_steps": 20},
        "cluster": {"num_ranks": 1, "restart_seconds": 0},
        "tracking": {"uri": f"sqlite:///{tmp_path}/mlflow.db", "spool": f"{tmp_path}/spool"},
        "tune": {"space": {"train.learning_rate": {"log": [1e-4, 1e-2]}}, "trials": 99, "refit": "none"},
    }
    (tmp_path / "conf.yaml").write_text(yaml.safe_dump(conf))
    log = tmp_path / "driver.log"
    with standalone_cluster(tmp_path_factory.mktemp("slots"), cores=(1,), pythonpath=str(ROOT)) as cluster:
        options = ["--conf", "spark.python.daemon.module=sparkdl.daemon"]
        driver = cluster.start(ROOT / "jobs" / "tune.py", f"{tmp_path}/conf.yaml", log=log, options=options)

        def wait_for(condition):
            deadline = time.monotonic() + 90
            while not (found := condition()):
                assert driver.poll() is None and time.monotonic() < deadline, log.read_text()[-6000:]
                time.sleep(0.05)
            return found

        def on_slots():
            return [process for process in cluster.find("python") if numbered_threads(process)]

        def numbers(state):
            records = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/trials/*.json")]
            return {record["number"] for record in records if record["state"] == state}

        wait_for(on_slots)
        cluster.start_worker(1)
        pair = wait_for(lambda: len(found := on_slots()) == 2 and found)
        running = numbers("running")
        executor = pair[-1].parents()[1]
        executor.parent().kill()  # the worker, which would start another
        executor.kill()
        wait_for(lambda: running <= numbers("finished"))
        assert running and not numbers("failed")


def test_a_tuner_tries_settings_on_folds_and_its_model_is_that_of_a_cross_validator(spark, tmp_path, empty_store):
    copy(empty_store, tmp_path / "mlflow.db")
    rows = spark.range(90).selectExpr("array(double(id % 2), double(id % 3)) as features", "int(id % 2) as label")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    classifier = sparkdl.TorchClassifier(epochs=4, batch_size=8, num_ranks=1, store=str(tmp_path), tracking_uri=uri)
    tuner = sparkdl.TorchTuner(
        estimator=classifier,
        evaluator=MulticlassClassificationEvaluator(metricName="accuracy"),
        space={"learning_rate": [1e-9, 0.05], "model_options.hidden": [[16]]},
        sampler="grid",
        numFolds=2,
        parallelism=2,
    )
    model = tuner.fit(rows)
    assert isinstance(model, CrossValidatorModel) and len(model.avgMetrics) == len(model.stdMetrics) == 2
    rates = [maps[classifier.getParam("learning_rate")] for maps in model.getEstimatorParamMaps()]
    assert rates == [1e-9, 0.05] and model.avgMetrics[1] > 0.9 > model.avgMetrics[0]
    assert model.transform(rows).where("prediction = label").count() > 80
    with pytest.raises(ConfigError, match="has no parameter 'lerning_rate'; did you mean 'learning_rate'"):
        tuner.copy({tuner.space: {"lerning_rate": [0.1]}}).fit(rows)
    with pytest.raises(ConfigError, match="a TorchTuner cannot be saved"):
        tuner.save(f"{tmp_path}/tuner")
