"""What each stack made once and this folder keeps: datasets, a run with its checkpoints, and a registered model.

Tests read them on whatever stack runs them. From the repository, the environment of a stack makes its archive anew:
``PYTHONPATH=. .venv/bin/python -m tests.stacks.made``.
"""

import json
import sqlite3
import tarfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import sparkdl
from sparkdl import Cluster, Prepare, Split, Stage, Tracking, Train

__all__ = ["DATASETS", "NAME", "STACKS", "people", "prepared", "settings", "tracking", "train_settings", "unpack"]

STACKS = ("classic", "current")
NAME = "people"
"""Of the registered model."""
HOME = "/made"
"""Where an archive says that it lies."""
FOLDER = Path(__file__).parent
STORED_PATHS = {
    "experiments": ["artifact_location"],
    "runs": ["artifact_uri"],
    "logged_models": ["artifact_location"],
    "model_versions": ["source", "storage_location"],
    "datasets": ["dataset_source"],
    "params": ["value"],
    "tags": ["value"],
}
"""Where MLflow's tables hold paths."""


def people(spark: SparkSession) -> DataFrame:
    """Numbers of which some are missing, and categories."""
    return spark.range(60).selectExpr(
        "id",
        "if(id % 7 = 0, null, cast(id % 20 as int)) as age",
        "double(id % 11) / 3 as fare",
        "if(id % 3 = 0, 'port', 'star') as side",
        "if(id % 20 > 9, 'old', 'young') as label",
    )


def images(spark: SparkSession) -> DataFrame:
    """Images of two by three pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (60, 6), dtype=np.uint8)
    return spark.createDataFrame([(bytearray(row), i % 3) for i, row in enumerate(pixels)], "image binary, label int")


def texts(spark: SparkSession) -> DataFrame:
    """Texts of some words, with one or two labels."""
    words = sf.expr("transform(sequence(0, int(id % 5)), i -> concat('word', (id * 7 + i * i) % 13))")
    labels = sf.expr("if(id % 3 = 0, array('a', 'b'), array('c'))")
    return spark.range(60).select(sf.array_join(words, " ").alias("text"), labels.alias("label"))


DATASETS: dict[str, tuple[Callable[[SparkSession], DataFrame], dict[str, Any]]] = {
    "vectors": (
        people,
        {
            "features": ["age", "fare", "side"],
            "stages": [
                Stage(kind="impute", columns=["age"]),
                Stage(kind="standardise", columns=["age", "fare"]),
                Stage(kind="index", columns=["side"]),
            ],
            "split": Split(fractions={"validation": 0.2}),
        },
    ),
    "images": (images, {"image": "image", "image_shape": (2, 3), "split": Split(fractions={})}),
    "sparse": (texts, {"stages": [Stage(kind="count_text", columns=["text"])], "sparse": True}),
}
"""Raw rows and settings of each kind of dataset."""


def settings(kind: str, folder: Path) -> Prepare:
    """How a dataset of a kind is prepared to ``folder/<kind>``."""
    return Prepare.model_validate({"output": str(folder / kind), "rows_per_group": 10, **DATASETS[kind][1]})


def prepared(kind: str, folder: Path, spark: SparkSession) -> sparkdl.Dataset:
    """The dataset of a kind: that which is there, if it is the same."""
    return sparkdl.prepare(DATASETS[kind][0](spark), settings(kind, folder), spark=spark)


def train_settings(folder: Path, **changes: Any) -> Train:
    """How the model is trained."""
    small = {"model": "mlp", "model_options": {"hidden": [8]}, "epochs": 1, "batch_size": 8}
    return Train.model_validate({**small, "run_dir": str(folder / "runs"), **changes})


def tracking(folder: Path) -> Tracking:
    """Where its run is recorded."""
    return Tracking(uri=f"sqlite:///{folder}/mlflow.db", register_as=NAME, spool=str(folder / "spool"))


def unpack(stack: str, folder: Path) -> dict[str, Any]:
    """Put there what a stack made; returns what it found: run, metrics, predictions and their probabilities."""
    with tarfile.open(FOLDER / f"{stack}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    _move_store(folder, HOME, str(folder))
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


def _make(folder: Path) -> None:
    spark = sparkdl.get_session(Cluster(embedded_slots=2))
    datasets = {kind: prepared(kind, folder, spark) for kind in DATASETS}
    trained = sparkdl.train(
        datasets["vectors"], train_settings(folder), cluster=Cluster(num_ranks=2), tracking=tracking(folder)
    )
    scored = sparkdl.score(people(spark), trained.model_uri, tracking=tracking(folder)).orderBy("id").collect()
    found = {
        "run_id": trained.run_id,
        "metrics": trained.metrics,
        "history": trained.history,
        "predictions": [row.prediction for row in scored],
        "probabilities": [row.probability for row in scored],
    }
    (folder / "found.json").write_text(json.dumps(found, indent=1))
    spark.stop()


def _without_code(file: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """A model's copy of the package is the package."""
    return None if file.name.endswith("/code") else file


def _move_store(folder: Path, old: str, new: str) -> None:
    """Have MLflow's store say that it lies elsewhere."""
    with sqlite3.connect(folder / "mlflow.db") as database:
        for table, columns in STORED_PATHS.items():
            for column in columns:
                database.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (old, new))
    database.close()


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        made = Path(scratch).resolve()
        _make(made)
        _move_store(made, str(made), HOME)
        _move_store(made, str(FOLDER.parents[1]), HOME)  # the program that made the run is among its tags
        with tarfile.open(FOLDER / f"{STACKS[int(pyspark.__version__[0]) >= 4]}.tar.xz", "w:xz") as out:
            for path in sorted(made.iterdir()):
                out.add(path, path.name, filter=_without_code)
