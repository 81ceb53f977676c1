"""A registered network gets lighter forms: a job makes them, a new version has them, and scoring uses them."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import mlflow.pyfunc
import numpy as np
import pandas as pd
import pytest
import torch
from mlflow.models import Model
from pyspark.sql import DataFrame, SparkSession
from torch import nn

from sparkdl import pipeline
from sparkdl.data import Dataset
from sparkdl.data.model_inputs import keep_inputs
from sparkdl.errors import ConfigError, DataError, DatasetError, ModelError
from sparkdl.forms.compress import CompressedModel, check_compress, compress
from sparkdl.models import NETWORK_FILE, export_network, read_forms
from sparkdl.scoring.dataframe import score
from sparkdl.settings import Cluster, Compress, Settings, Tracking, Train
from sparkdl.settings.compress import FormGate
from sparkdl.tracking import download, start_run
from sparkdl.tracking.store import connect

ROWS = np.random.default_rng(0).normal(size=(40, 4)).tolist()


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Tracking:
    folder = tmp_path_factory.mktemp("store")
    (folder / "mlflow.db").write_bytes(empty_store.read_bytes())
    return Tracking(uri=f"sqlite:///{folder}/mlflow.db", register_as="clouds", spool=f"{folder}/spool")


@pytest.fixture(scope="module")
def original(tracking: Tracking, clouds: Dataset, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A version whose network tells the four clouds apart without having learned: each has its own coordinate."""
    folder = tmp_path_factory.mktemp("model")
    network = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    with torch.no_grad():
        for layer in network:
            layer.weight.copy_(torch.eye(4))
    export_network(network, folder / NETWORK_FILE, torch.zeros(2, 4))
    keep_inputs(clouds, folder)
    with start_run(tracking, params={}) as run:
        row = pd.DataFrame({"features": [[0.0] * 4]})
        logged = run.log_model(folder, inputs=clouds.served_columns, example=row, metadata={"owner": "sky"})
        registered = run.register(logged, {"test_accuracy": 0.875})
    assert registered is not None and registered.moved
    client = connect(tracking)
    client.update_model_version("clouds", "1", "four clouds")
    client.set_model_version_tag("clouds", "1", "ticket", "1234567")
    return registered.uri


@pytest.fixture(scope="module")
def compressed(
    original: str, clouds: Dataset, tracking: Tracking, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> CompressedModel:
    gate = FormGate(lose=0.05)  # of 30 rows one may be told otherwise
    settings = Compress(calibration_rows=0, run_dir=str(tmp_path_factory.mktemp("runs")), gate=gate)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*input example was not provided")  # nobody can provide it here
        return compress("models:/clouds@candidate", settings, dataset=clouds, tracking=tracking, spark=spark)


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> Iterator[DataFrame]:
    yield spark.createDataFrame([(row,) for row in ROWS], "features array<double>")


def test_a_new_version_has_the_forms_and_the_alias_moves_to_it(
    original: str, compressed: CompressedModel, tracking: Tracking
) -> None:
    assert list(compressed.forms) == ["int8", "float16", "onnx"] and not compressed.left_out
    assert compressed.registered is not None and compressed.registered.moved
    assert compressed.model_uri == "models:/clouds/2"
    folder = download(compressed.model_uri, tracking)
    assert read_forms(folder) == compressed.forms
    assert (folder / NETWORK_FILE).read_bytes() == (download(original, tracking) / NETWORK_FILE).read_bytes()
    tags = connect(tracking).get_model_version("clouds", "2").tags
    assert tags["test_accuracy"] == "0.875"  # that of the original, by which the next version is judged
    assert float(tags["int8_validation_accuracy"]) == pytest.approx(compressed.forms["int8"].figure)
    assert not list(Path(connect(tracking).get_run(compressed.run_id).data.params["compress.run_dir"]).rglob("*.onnx"))


def test_the_new_version_keeps_what_people_and_mlflow_know_of_the_old_one(
    original: str, compressed: CompressedModel, tracking: Tracking
) -> None:
    client = connect(tracking)
    old, new = (client.get_model_version("clouds", number) for number in "12")
    assert new.description == "four clouds" and new.tags["ticket"] == "1234567"
    assert new.tags["sparkdl.made_from"] == original and new.tags["sparkdl.trained_in"] == old.run_id
    assert client.get_run(compressed.run_id).data.params["model"] == original  # and not the alias, which has moved
    folders = [download(uri, tracking).parent.parent for uri in (original, compressed.model_uri)]
    ours, theirs = (Model.load(str(folder)) for folder in reversed(folders))
    assert ours.metadata == theirs.metadata == {"owner": "sky"}
    assert ours.signature is not None and theirs.signature is not None
    assert (ours.signature.inputs, ours.signature.outputs) == (theirs.signature.inputs, theirs.signature.outputs)
    assert ours.signature.params is not None and ours.signature.params.to_dict()[0]["name"] == "form"
    example = ours.load_input_example(str(folders[1]))
    assert isinstance(example, pd.DataFrame) and example.to_dict("list") == {"features": [[0.0] * 4]}
    first, second = (mlflow.pyfunc.load_model(str(folder)).predict(example) for folder in folders)
    assert second["prediction"].tolist() == first["prediction"].tolist()


def test_each_form_scores_a_table_as_the_original_does(
    compressed: CompressedModel, tracking: Tracking, rows: DataFrame
) -> None:
    expected = [row.prediction for row in score(rows, compressed, form="original").collect()]
    for form in ("int8", "float16", "onnx", "auto"):
        found = [row.prediction for row in score(rows, compressed, form=form).collect()]  # type: ignore[arg-type]
        assert np.mean(np.array(found) == np.array(expected)) > 0.9
    frame = pd.DataFrame({"features": ROWS})
    served = mlflow.pyfunc.load_model(str(download(compressed.model_uri, tracking).parent.parent))
    for params in ({}, {"form": "int8"}, {"form": "original", "top_k": 2}):
        answer = served.predict(frame, params=params)
        assert np.mean(answer["prediction"] == expected) > 0.9
    assert len(answer["top_k"][0]) == 2
    with pytest.raises(
        ConfigError, match=r"score\.form is 'int4'; it must be one of auto, original, int8, int8_weights, float16, onnx"
    ):
        served.predict(frame, params={"form": "int4"})


def test_a_version_without_forms_says_how_they_are_made(original: str, tracking: Tracking, rows: DataFrame) -> None:
    assert score(rows, original, tracking=tracking).count() == len(ROWS)
    with pytest.raises(ConfigError, match=r"no form 'int8'; it has none\. `sparkdl compress` makes a version that has"):
        score(rows, original, form="int8", tracking=tracking)


@pytest.fixture(scope="module")
def fragile(tracking: Tracking, clouds: Dataset, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A network whose numbers are all about 1,000 between its layers: eight bits do not tell them apart."""
    folder = tmp_path_factory.mktemp("fragile")
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    with torch.no_grad():
        for layer, bias in ((first, 1000.0), (second, 0.0)):
            layer.weight.copy_(torch.eye(4))
            layer.bias.fill_(bias)
    export_network(nn.Sequential(first, nn.ReLU(), second), folder / NETWORK_FILE, torch.zeros(2, 4))
    keep_inputs(clouds, folder)
    with start_run(tracking, params={}) as run:
        registered = run.register(run.log_model(folder, inputs=clouds.served_columns), {"test_accuracy": 0.875})
    assert registered is not None
    return registered.uri


def test_a_form_that_loses_too_much_is_kept_out_with_both_figures_and_no_version_is_made_without_any(
    fragile: str, clouds: Dataset, tracking: Tracking, spark: SparkSession, tmp_path: Path
) -> None:
    before = connect(tracking).get_registered_model("clouds")
    settings = Compress(forms=["int8"], calibration_rows=0, run_dir=str(tmp_path))
    lost = (
        r"int8: it loses too much: its validation_accuracy is 0\.\d+, the original's 0\.\d+, and compress\.gate\.lose"
        r" allows a loss of 0\.005"
    )
    with pytest.raises(ModelError, match=lost):
        compress(fragile, settings, dataset=clouds, tracking=tracking, spark=spark)
    after = connect(tracking).get_registered_model("clouds")
    assert after.aliases == before.aliases
    assert after.latest_versions[0].version == before.latest_versions[0].version


def test_what_cannot_be_is_found_before_anything_starts(
    original: str, clouds: Dataset, tracking: Tracking, tmp_path: Path
) -> None:
    settings = Compress(run_dir=str(tmp_path))
    with pytest.raises(DataError, match="has 30 rows of validation, too few to calibrate int8 by"):
        check_compress(original, settings, dataset=clouds, tracking=tracking)
    renamed = Dataset(clouds.path, clouds.card.model_copy(update={"label_names": ("a", "b", "c", "d")}))
    with pytest.raises(DatasetError, match="has other labels than models:/clouds/1 was trained on"):
        check_compress(original, settings, dataset=renamed, tracking=tracking)
    with pytest.raises(ConfigError, match=r"there is no model to compress: set compress\.model"):
        check_compress(None, settings, dataset=clouds, tracking=Tracking(uri=tracking.uri))
    told = check_compress(
        original, Compress(calibration_rows=0, run_dir=str(tmp_path)), dataset=clouds, tracking=tracking
    )
    assert told["measured on"].startswith("30 rows of validation in") and told["registers"] == "clouds"


def test_training_makes_the_forms_of_what_it_has_registered_where_it_is_told_to(
    clouds: Dataset, tracking: Tracking, spark: SparkSession, tmp_path: Path
) -> None:
    forms = Compress(forms=["float16"], after_training=True, gate=FormGate(lose=None), run_dir=str(tmp_path))
    trained_on = Train(dataset=clouds.path, epochs=1, run_dir=str(tmp_path))
    store = tracking.model_copy(update={"register_as": "trained"})
    settings = Settings(train=trained_on, compress=forms, cluster=Cluster(num_ranks=1), tracking=store)
    assert pipeline.check_train(settings)["forms"] == "float16, measured on 30 rows of validation"
    told = pipeline.train(settings)
    assert (told["model"], told["model with forms"]) == ("models:/trained/1", "models:/trained/2")
    assert told["float16"].startswith("validation_accuracy ")
    calibrated = settings.model_copy(update={"compress": Compress(after_training=True, run_dir=str(tmp_path))})
    with pytest.raises(DataError, match="has 30 rows of validation, too few to calibrate int8 by"):
        pipeline.train(calibrated)
    assert connect(store).get_registered_model("trained").latest_versions[0].version == 2
