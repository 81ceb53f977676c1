"""The jobs, as spark-submit runs them on a cluster, and the same through the installed command."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    """A configuration over a small csv file of two classes with a category and missing values."""
    folder = tmp_path_factory.mktemp("pipeline")
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 240)
    table = pd.DataFrame(
        {
            "size": random.normal(size=240) + 4 * labels,
            "colour": random.choice(["red", "green"], 240),
            "kind": np.where(labels == 1, "cat", "dog"),
        }
    )
    table.loc[::20, "size"] = None
    table.to_csv(folder / "animals.csv", index=False)
    tree = {
        "prepare": {
            "source": {
                "format": "csv",
                "path": str(folder / "animals.csv"),
                "options": {"header": True, "inferSchema": True},
            },
            "output": str(folder / "dataset"),
            "label": "kind",
            "stages": [
                {"kind": "impute", "columns": ["size"]},
                {"kind": "standardise", "columns": ["size"]},
                {"kind": "index", "columns": ["colour"]},
            ],
        },
        "train": {"epochs": 3, "batch_size": 8, "learning_rate": 0.01, "run_dir": str(folder / "runs")},
        "score": {"output": str(folder / "predictions")},
        "tracking": {"uri": f"sqlite:///{folder / 'mlflow.db'}", "register_as": "animals"},
    }
    (folder / "animals.yaml").write_text(yaml.safe_dump(tree))
    return folder


def test_spark_submit_prepares_trains_and_scores_on_a_cluster(standalone, pipeline):
    configuration = str(pipeline / "animals.yaml")
    standalone.submit(JOBS / "prepare.py", configuration)
    trained = standalone.submit(JOBS / "train.py", configuration, "train.epochs=4")
    assert "alias 'candidate' points to version 1" in trained.stdout
    standalone.submit(JOBS / "score.py", configuration)
    predictions = pd.concat(map(pd.read_parquet, (pipeline / "predictions").glob("*.parquet")))
    assert len(predictions) == 240
    assert (predictions["prediction"] == predictions["kind"]).mean() > 0.9


def test_the_installed_command_reports_mistakes_in_one_line(pipeline):
    command = [Path(sys.executable).parent / "sparkdl", "train", pipeline / "animals.yaml", "train.epoch=3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "did you mean 'train.epochs'" in done.stderr and "Traceback" not in done.stderr
