"""A registered model answers MLflow's own server and its user-defined function, where nothing but what it asks for is.

A model that preprocesses asks for Spark, one that does not needs none.
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import pandas as pd
import psutil
import pytest
import torch
from pyspark.sql import SparkSession

from benchmarks.ports import free_ports
from sparkdl.data import Dataset, prepare
from sparkdl.data.model_inputs import keep_inputs, packages_for_inputs
from sparkdl.java import ensure_java
from sparkdl.models import NETWORK_FILE, build, export_network
from sparkdl.settings import Prepare, Split, Stage, Tracking
from sparkdl.tracking import download, start_run

from ..conftest import end_processes
from ..model_environment import make_environment

START_SECONDS = 120
ROWS = 5
COLUMNS = ["a", "b", "c"]


@pytest.fixture(scope="module")
def people(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Rows of three numbers, which Spark standardises."""
    rows = spark.range(40).selectExpr("id / 2 as a", "double(id % 7) as b", "double(id % 3) as c", "id % 2 as label")
    settings = Prepare(
        output=str(tmp_path_factory.mktemp("people") / "dataset"),
        stages=[Stage(kind="standardise", columns=COLUMNS)],
        split=Split(fractions={}),
    )
    return prepare(rows, settings, spark=spark)


class Served:
    """A logged model, the environment that its requirements make, and rows for it."""

    def __init__(self, dataset: Dataset, folder: Path) -> None:
        (folder / "model").mkdir()
        torch.manual_seed(0)
        network = build("mlp", input_shape=dataset.input.shape, num_classes=dataset.num_classes)
        export_network(network, folder / "model" / NETWORK_FILE, torch.zeros(1, *dataset.input.shape))
        keep_inputs(dataset, folder / "model")
        tracking = Tracking(uri=f"sqlite:///{folder}/mlflow.db", spool=str(folder / "spool"))
        with start_run(tracking, params={}) as run:
            uri = run.log_model(folder / "model", inputs=dataset.raw_columns, requirements=packages_for_inputs(dataset))
        self.model = download(uri, tracking).parent.parent
        self.python = make_environment(folder / "environment", self.model / "requirements.txt")
        self.log = folder / "server.log"
        points = torch.randn(ROWS, 4 if dataset.preprocessing_path is None else len(COLUMNS)).tolist()
        self.rows = (
            pd.DataFrame(points, columns=COLUMNS) if dataset.preprocessing_path else pd.DataFrame({"features": points})
        )

    def environment(self) -> dict[str, str]:
        """Variables for a process in it: neither the repository nor this process's packages are on its path."""
        path = os.pathsep.join([str(self.python.parent), os.environ["PATH"]])
        return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"PATH": path}

    def has(self, package: str) -> bool:
        """Whether the environment has a package."""
        program = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
        asked = subprocess.run([self.python, "-c", program], env=self.environment(), cwd=self.log.parent, check=False)
        return asked.returncode == 0


@pytest.fixture(scope="module")
def plain(clouds: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(clouds, tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def preprocessing(people: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(people, tmp_path_factory.mktemp("preprocessing"))


@pytest.fixture(scope="module", params=["plain", "preprocessing"])
def served(request: pytest.FixtureRequest) -> Served:
    return request.getfixturevalue(request.param)


@pytest.fixture
def server(served: Served) -> Iterator[str]:
    """``mlflow models serve`` in the model's environment; its address."""
    (port,) = free_ports(1)
    command = [str(served.python), "-m", "mlflow", "models", "serve", "--env-manager", "local"]
    command += ["--model-uri", str(served.model), "--port", str(port), "--workers", "1"]
    with served.log.open("w") as log:
        process = subprocess.Popen(command, env=served.environment(), stdout=log, stderr=log, cwd=served.log.parent)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None and time.monotonic() < deadline, served.log.read_text()[-3000:]
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        end_processes([psutil.Process(process.pid)])


def ask(address: str, rows: pd.DataFrame) -> list[dict[str, Any]]:
    body = json.dumps({"dataframe_split": rows.to_dict(orient="split", index=False)}).encode()
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return list(json.load(answer)["predictions"])
    except urllib.error.HTTPError as error:
        error.add_note(error.read().decode())
        raise


def test_a_server_with_nothing_but_the_models_requirements_answers_what_the_model_says(
    served: Served, server: str
) -> None:
    expected = mlflow.pyfunc.load_model(str(served.model)).predict(served.rows)
    for rows in (ROWS, 1):
        answers = ask(server, served.rows[:rows])
        assert [answer["prediction"] for answer in answers] == list(expected["prediction"][:rows])
        assert [answer["probability"] for answer in answers] == pytest.approx(list(expected["probability"][:rows]))
    with pytest.raises(urllib.error.HTTPError) as refused:
        ask(server, served.rows.rename(columns=str.upper))
    assert refused.value.code == 400
    assert served.rows.columns[0] in refused.value.__notes__[0]


def test_an_environment_holds_spark_for_a_model_that_preprocesses_alone(plain: Served, preprocessing: Served) -> None:
    assert preprocessing.has("pyspark") and not plain.has("pyspark")
    for served in (plain, preprocessing):
        assert served.has("torch")
        assert [name for name in ("sparkdl", "horovod", "petastorm", "numba") if served.has(name)] == []


PROGRAM = """
import json, sys
import mlflow.pyfunc
from pyspark.sql import SparkSession, functions as F

model, rows = sys.argv[1], json.loads(sys.argv[2])
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
frame = spark.createDataFrame([(i, row) for i, row in enumerate(rows)], "id int, features array<float>")
udf = mlflow.pyfunc.spark_udf(spark, model, env_manager="local", result_type="prediction string, probability double")
answers = frame.select("id", udf(F.struct("features")).alias("answer")).orderBy("id").collect()
home = frame.select(F.udf(lambda _: sys.executable)("id")).first()[0]
print(json.dumps([home, [[row.answer.prediction, row.answer.probability] for row in answers]]))
"""


def test_a_function_of_spark_answers_on_workers_with_nothing_but_the_models_requirements(plain: Served) -> None:
    ensure_java()
    expected = mlflow.pyfunc.load_model(str(plain.model)).predict(plain.rows)
    command = [sys.executable, "-c", PROGRAM, str(plain.model), json.dumps(plain.rows["features"].tolist())]
    environment = {**plain.environment(), "PYSPARK_PYTHON": str(plain.python), "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(
        command, env=environment, cwd=plain.log.parent, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
    home, answers = json.loads(done.stdout.splitlines()[-1])
    assert home == str(plain.python)
    assert [prediction for prediction, _ in answers] == list(expected["prediction"])
    assert [probability for _, probability in answers] == pytest.approx(list(expected["probability"]))
