"""`make demo`, from raw images to a column of predictions, with two epochs instead of three."""

import re
import subprocess
import sys
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest

import sparkdl

from ..conftest import OF_JAVA

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo's output and the folder that it wrote to."""
    folder = tmp_path_factory.mktemp("demo")
    command = [sys.executable, ROOT / "jobs" / "demo.py", ROOT / "conf" / "fashion_mnist.yaml", "train.epochs=2"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done, folder


def test_the_network_reaches_ninety_percent(demo):
    done, _ = demo
    accuracy = float(re.search(r"test accuracy +([\d.]+)%", done.stdout)[1])
    assert accuracy >= 90


def test_the_predictions_are_as_good_as_the_evaluation_said(demo):
    done, _ = demo
    evaluated = re.search(r"test accuracy +([\d.]+)%", done.stdout)[1]
    scored = re.search(r"predictions +.*\(([\d.]+)% of them are right\)", done.stdout)[1]
    assert evaluated == scored


def test_the_summary_says_where_everything_is(demo):
    done, folder = demo
    assert "models:/fashion-mnist@candidate" in done.stdout
    assert "points to version 1" in done.stdout
    assert re.search(r"training speed +[\d,]+ images/s on 2 ranks", done.stdout)
    assert "mlflow ui --backend-store-uri sqlite:///output/mlflow.db" in done.stdout
    assert list((folder / "output" / "fashion-mnist" / "predictions").glob("*.parquet"))


def test_nothing_in_its_log_is_noise(demo):
    done, _ = demo
    for noise in ("WARN", "Warning", "DEBUG", "Traceback", "\tat org.apache"):
        assert noise not in done.stderr.replace(OF_JAVA, ""), done.stderr[-3000:]


def test_the_registered_model_is_a_plain_pyfunc(demo, use_store):
    _, folder = demo
    predictions = pd.concat(map(pd.read_parquet, (folder / "output/fashion-mnist/predictions").glob("*.parquet")))
    rows = predictions.head(1000)
    use_store(f"sqlite:///{folder / 'output' / 'mlflow.db'}")
    model = mlflow.pyfunc.load_model("models:/fashion-mnist@candidate")
    together = model.predict(rows[["image"]])
    assert list(together["prediction"]) == list(rows["prediction"])
    assert np.allclose(together["probability"], rows["probability"], atol=1e-5)
    alone = model.predict(rows[["image"]].head(1))
    assert alone["prediction"][0] == together["prediction"][0]


def test_its_dataset_is_whole(demo):
    _, folder = demo
    dataset = sparkdl.Dataset.open(str(folder / "output" / "fashion-mnist" / "dataset"))
    dataset.verify()
    assert sum(dataset.rows(split) for split in dataset.splits) == 70_000
