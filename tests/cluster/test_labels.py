"""A predicted label is of the labels' own type: in a DataFrame, in MLflow's function, in what a server answers."""

import io
import json
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from shutil import copy
from typing import Any

import pandas as pd
import pytest
import torch
from mlflow.pyfunc.scoring_server import predictions_to_json
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from torch import nn

from sparkdl.data import prepare
from sparkdl.data.model_inputs import keep_inputs
from sparkdl.errors import DataError
from sparkdl.models import NETWORK_FILE, export_network
from sparkdl.scoring.dataframe import score
from sparkdl.scoring.pyfunc import PyfuncModel
from sparkdl.settings import Prepare, Split, Tracking
from sparkdl.tracking import Run, start_run
from sparkdl.tracking.translate import ranked

ROWS = 40


@pytest.fixture(scope="module")
def tracking(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Tracking:
    folder = tmp_path_factory.mktemp("store")
    copy(empty_store, folder / "mlflow.db")
    return Tracking(uri=f"sqlite:///{folder}/mlflow.db", spool=f"{folder}/spool")


@pytest.fixture(scope="module")
def run(tracking: Tracking) -> Iterator[Run]:
    """What models are logged to."""
    with start_run(tracking, params={}) as run:
        yield run


class Line(nn.Module):
    """Tells the first class, in the order of the labels, by a negative number."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.cat([-rows, rows], dim=1)


def table(spark: SparkSession, label: str) -> DataFrame:
    """Rows whose label is the first of two, in their order, where ``x`` is negative."""
    return spark.range(ROWS, numPartitions=2).selectExpr("if(id % 3 = 0, -1.5D, id) as x", f"{label} as label")


def model_of(rows: DataFrame, folder: Path, run: Run) -> str:
    """The address of a model that is right in all rows."""
    settings = Prepare(output=str(folder / "dataset"), features=["x"], split=Split(fractions={}), num_ranks=1)
    dataset = prepare(rows, settings)
    (folder / "model").mkdir()
    export_network(Line(), folder / "model" / NETWORK_FILE, torch.zeros(1, *dataset.input.shape))
    keep_inputs(dataset, folder / "model")
    return run.log_model(folder / "model", inputs=dataset.served_columns, outputs=ranked(dataset.card.label_type))


@pytest.mark.parametrize(
    ("label", "kind", "values"),
    [
        ("int(if(id % 3 = 0, -2, 12))", "int", (-2, 12)),
        ("if(id % 3 = 0, 2L, 10000000000L)", "bigint", (2, 10_000_000_000)),
        ("if(id % 3 = 0, 2D, 12D)", "double", (2.0, 12.0)),
        ("id % 3 > 0", "boolean", (False, True)),
        ("cast(if(id % 3 = 0, 2, 12) as decimal(10, 2))", "decimal(10,2)", (Decimal(2), Decimal(12))),
        ("if(id % 3 = 0, 'a', 'é')", "string", ("a", "é")),
        ("if(id % 3 = 0, date'1969-12-31', date'2024-02-29')", "date", (date(1969, 12, 31), date(2024, 2, 29))),
    ],
    ids=["int", "bigint", "double", "boolean", "decimal", "string", "date"],
)
def test_a_prediction_equals_the_label_that_it_means(
    spark: SparkSession,
    tmp_path: Path,
    tracking: Tracking,
    run: Run,
    label: str,
    kind: str,
    values: tuple[Any, Any],
) -> None:
    rows = table(spark, label)
    uri = model_of(rows, tmp_path, run)
    scored = score(rows, uri, tracking=tracking).cache()
    assert dict(scored.dtypes)["prediction"] == dict(rows.dtypes)["label"] == kind
    assert dict(scored.dtypes)["top_k"] == f"array<struct<label:{kind},probability:double>>"
    assert scored.where("prediction = label").where("top_k[0].label = label").count() == ROWS
    assert {row.prediction for row in scored.select("prediction").collect()} == set(values)

    answer = PyfuncModel(tmp_path / "model").predict(pd.DataFrame({"x": [-1.5, 3.0]}))
    assert [type(value) for value in answer["prediction"].tolist()] == [
        float if isinstance(value, Decimal) else type(value) for value in values
    ]
    assert answer["prediction"].tolist() == [pairs[0]["label"] for pairs in answer["top_k"]] == list(values)
    predictions_to_json(answer, said := io.StringIO())
    said_of = [row["prediction"] for row in json.loads(said.getvalue())["predictions"]]
    assert said_of == [str(value) if kind == "date" else value for value in values]


def test_labels_without_an_order_of_their_own_in_every_zone_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(4).select(sf.col("id").alias("x"), sf.timestamp_seconds("id").alias("label"))
    with pytest.raises(DataError, match="'label' is timestamp, which fits no task: classification needs whole"):
        prepare(rows, Prepare(output=str(tmp_path / "d"), features=["x"]))
