"""A registered model answers MLflow's own server and its user-defined function, where nothing but what it asks for is.

It asks for neither Spark nor Java, whether it preprocesses or not.
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import pandas as pd
import psutil
import pytest
import torch
from pyspark.sql import DataFrame, SparkSession

from benchmarks.ports import free_ports
from sparkdl.data import Dataset, prepare
from sparkdl.data.model_inputs import keep_inputs, packages_for_inputs
from sparkdl.java import ensure_java
from sparkdl.models import NETWORK_FILE, build, export_network
from sparkdl.scoring.dataframe import score
from sparkdl.settings import Prepare, Split, Stage, Tracking
from sparkdl.tracking import download, start_run

from ..conftest import end_processes
from ..model_environment import make_environment

START_SECONDS = 120
ROWS = 5
PEOPLE = pd.DataFrame(
    {
        "age": [1.5, None, 30.0, 7.25, 0.0],
        "side": ["port", "star", None, "port", "stern"],
        "home": [{"lat": 50.5}, {"lat": None}, {"lat": -3.0, "lon": 1.0}, {"lat": 0.0}, {"lat": 1e6}],
        "born": [date(1969, 7, 20), date(2000, 2, 29), None, date(1970, 1, 1), date(2100, 12, 31)],
    }
)
"""Rows with what training rows had, with nothing, and with what is new."""
SCHEMA = "age double, side string, home struct<lat: double>, born date"


@pytest.fixture(scope="module")
def people(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A table of a number, a category, a field of a struct and a date."""
    rows = spark.range(40).selectExpr(
        *("id / 2 as age", "if(id % 3 = 0, 'port', 'star') as side", "id % 2 as label"),
        *("named_struct('lat', id / 4, 'lon', 0) as home", "date_add(date'1999-12-20', int(id * 70)) as born"),
    )
    settings = Prepare(
        output=str(tmp_path_factory.mktemp("people") / "dataset"),
        features=["age", "side", "home.lat", "born"],
        stages=[
            Stage(kind="date", columns=["born"], parts=["year", "day_of_week"]),
            Stage(kind="impute", columns=["age", "home.lat", "born"]),
            Stage(kind="standardise", columns=["age", "home.lat", "born"]),
            Stage(kind="index", columns=["side"]),
        ],
        split=Split(fractions={}),
    )
    return prepare(rows, settings, spark=spark)


@pytest.fixture(scope="module")
def notes(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Texts, some of them beyond ASCII, by counted words."""
    rows = spark.range(40).selectExpr(
        "concat('Straße ', id % 3, if(id % 2 = 0, ', red', ' naïve')) as text", "id % 2 as label"
    )
    stages = [Stage(kind="count_text", columns=["text"], bigrams=True)]
    output = str(tmp_path_factory.mktemp("notes") / "dataset")
    return prepare(
        rows, Prepare(output=output, features=["text"], stages=stages, split=Split(fractions={})), spark=spark
    )


@pytest.fixture(scope="module")
def pictures(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Pixels of 4 x 5 images."""
    rows = [(bytes(range(number, number + 20)), number % 2) for number in range(40)]
    output = str(tmp_path_factory.mktemp("pictures") / "dataset")
    settings = Prepare(output=output, image="image", image_shape=[4, 5], split=Split(fractions={}))
    return prepare(spark.createDataFrame(rows, "image binary, label int"), settings, spark=spark)


class Served:
    """A logged model, the environment that its requirements make, and rows for it."""

    def __init__(self, dataset: Dataset, folder: Path) -> None:
        (folder / "model").mkdir()
        torch.manual_seed(0)
        network = build("mlp", input_shape=dataset.input.shape, num_classes=dataset.num_classes)
        sample = torch.zeros(1, *dataset.input.shape, dtype=getattr(torch, dataset.input.dtype))
        export_network(network, folder / "model" / NETWORK_FILE, sample)
        keep_inputs(dataset, folder / "model")
        tracking = Tracking(uri=f"sqlite:///{folder}/mlflow.db", spool=str(folder / "spool"))
        with start_run(tracking, params={}) as run:
            requirements = packages_for_inputs(folder / "model")
            uri = run.log_model(folder / "model", inputs=dataset.served_columns, requirements=requirements)
        self.model = download(uri, tracking).parent.parent
        self.python = make_environment(folder / "environment", self.model / "requirements.txt")
        self.log = folder / "server.log"
        self.rows = PEOPLE if dataset.preprocessing_path else pd.DataFrame({"features": torch.randn(ROWS, 4).tolist()})

    def environment(self) -> dict[str, str]:
        """Variables for a process in it: Java, the repository and this process's packages are not on its path."""
        path = os.pathsep.join([str(self.python.parent), "/usr/bin", "/bin"])
        left_out = ("PYTHONPATH", "JAVA_HOME", "SPARK_HOME")
        return {name: value for name, value in os.environ.items() if name not in left_out} | {"PATH": path}

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
    body = json.dumps({"dataframe_split": rows.to_dict(orient="split", index=False)}, default=str).encode()
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


def test_an_environment_holds_no_spark_whether_a_model_preprocesses_or_not(
    plain: Served, preprocessing: Served
) -> None:
    for served in (plain, preprocessing):
        assert served.has("torch")
        others = ("sparkdl", "pyspark", "horovod", "petastorm", "numba")
        assert [name for name in others if served.has(name)] == []


ANSWERS = """
import importlib.util, json, shutil, sys
import mlflow.pyfunc
from mlflow.pyfunc.scoring_server import invocations

answers = {}
for folder, records in json.loads(sys.stdin.read()):
    model = mlflow.pyfunc.load_model(folder)
    columns = list(records[0])
    forms = {
        "dataframe_split": {"columns": columns, "data": [list(record.values()) for record in records]},
        "dataframe_records": records,
        "instances": records,
        "inputs": {name: [record[name] for record in records] for name in columns},
    }
    for form, content in forms.items():
        answer = invocations(json.dumps({form: content}), "application/json", model, model.metadata.get_input_schema())
        found = [[row["prediction"], row["probability"]] for row in json.loads(answer.response)["predictions"]]
        answers.setdefault(folder, {})[form] = found
print(json.dumps([answers, importlib.util.find_spec("pyspark") is None, shutil.which("java") is None]))
"""


def test_tables_texts_and_images_are_answered_without_spark_and_java_as_score_answers_them(
    spark: SparkSession,
    preprocessing: Served,
    notes: Dataset,
    pictures: Dataset,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """By what MLflow's server does with a request, in each of its four forms."""
    texts, images = (Served(each, tmp_path_factory.mktemp("served")) for each in (notes, pictures))
    rows = {
        preprocessing: spark.createDataFrame(
            PEOPLE.astype(object).where(PEOPLE.notna(), None).to_dict("records"), SCHEMA
        ),
        texts: spark.createDataFrame([("Red STRASSE, naïve",), ("",), ("Straße 2",)], "text string"),
        images: spark.createDataFrame([(bytes(range(50, 70)),), (b"A" * 20,)], "image binary"),
    }
    asked = [(str(served.model), _records(frame)) for served, frame in rows.items()]
    environment = {**preprocessing.environment(), "PATH": str(preprocessing.python.parent)}
    done = subprocess.run(
        [str(preprocessing.python), "-c", ANSWERS],
        input=json.dumps(asked, default=str),
        env=environment,
        cwd=preprocessing.log.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answers, without_spark, without_java = json.loads(done.stdout.splitlines()[-1])
    assert without_spark and without_java
    for served, frame in rows.items():
        scored = score(frame, str(served.model)).select("prediction", "probability").collect()
        for found in answers[str(served.model)].values():
            assert [label for label, _ in found] == [row.prediction for row in scored]
            assert [probability for _, probability in found] == pytest.approx(
                [row.probability for row in scored], abs=1e-6
            )


def _records(frame: DataFrame) -> list[dict[str, Any]]:
    """Rows for JSON, in which bytes are text in base64."""
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    return [
        {name: b64encode(value).decode() if isinstance(value, bytearray) else value for name, value in row.items()}
        for row in rows
    ]


PROGRAM = """
import json, sys
import mlflow.pyfunc
from pyspark.sql import SparkSession, functions as F

model, rows, schema, kind = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], sys.argv[4]
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", False).getOrCreate()
texts = spark.createDataFrame([(i, json.dumps(row)) for i, row in enumerate(rows)], "id int, row string")
frame = texts.select("id", F.from_json("row", schema).alias("row")).select("id", "row.*")
udf = mlflow.pyfunc.spark_udf(spark, model, env_manager="local", result_type=f"prediction {kind}, probability double")
columns = frame.columns[1:]
for given in ([F.struct(*columns)], columns):
    answers = frame.select("id", udf(*given).alias("answer")).orderBy("id").collect()
    print(json.dumps([[row.answer.prediction, row.answer.probability] for row in answers]))
print(json.dumps(frame.select(F.udf(lambda _: sys.executable)("id")).first()[0]))
"""


@pytest.mark.parametrize(
    ("served", "schema", "kind"),
    [("plain", "features array<float>", "string"), ("preprocessing", SCHEMA, "bigint")],
    indirect=["served"],
)
def test_a_function_of_spark_answers_on_workers_with_nothing_but_the_models_requirements(
    served: Served, schema: str, kind: str
) -> None:
    """Both ways to call it: with a struct, and with columns."""
    ensure_java()
    expected = mlflow.pyfunc.load_model(str(served.model)).predict(served.rows)
    rows = served.rows.astype(object).where(served.rows.notna(), None).to_dict(orient="records")
    command = [sys.executable, "-c", PROGRAM, str(served.model), json.dumps(rows, default=str), schema, kind]
    environment = {
        **served.environment(),
        "PYSPARK_PYTHON": str(served.python),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    environment |= {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    done = subprocess.run(
        command, env=environment, cwd=served.log.parent, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr[-4000:]
    *answers, home = map(json.loads, done.stdout.splitlines()[-3:])
    assert home == str(served.python)
    for answered in answers:
        assert [prediction for prediction, _ in answered] == list(expected["prediction"])
        assert [probability for _, probability in answered] == pytest.approx(list(expected["probability"]))
