import base64
import io
import json
import subprocess
import sys
from pathlib import Path

import mlflow.pyfunc
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from mlflow.pyfunc.scoring_server import invocations
from PIL import Image

from sparkdl.errors import DataError
from sparkdl.scoring.network import NetworkModel
from sparkdl.scoring.predictor import Predictor
from sparkdl.scoring.pyfunc import PyfuncModel
from sparkdl.settings import Tracking
from sparkdl.tracking import download, start_run


@pytest.fixture(scope="module")
def uri(images: Path, store: str) -> str:
    """The root of the logged model."""
    tracking = Tracking(uri=store)
    example = pd.DataFrame({"image": [bytes(48)]})
    with start_run(tracking, params={}) as run:
        logged = run.log_model(images, inputs={"image": "binary"}, example=example)
    return str(download(logged, tracking).parent.parent)


def _frame(rows: int) -> pd.DataFrame:
    pixels = np.random.default_rng(0).integers(0, 256, (rows, 48), dtype=np.uint8)
    return pd.DataFrame({"image": [row.tobytes() for row in pixels]}, index=range(100, 100 + rows))


@pytest.mark.parametrize("rows", [1, 2, 1000])
def test_the_registered_model_is_a_plain_pyfunc_for_any_number_of_rows(uri: str, images: Path, rows: int) -> None:
    answer = mlflow.pyfunc.load_model(uri).predict(_frame(rows))
    inputs = np.stack([np.frombuffer(row, np.uint8).reshape(8, 6, 1) for row in _frame(rows)["image"]])
    predictor = Predictor.load(images)
    assert isinstance(predictor.model, NetworkModel)
    expected = predictor.model.outputs_of(inputs)["logits"].softmax(dim=1).numpy()
    assert list(answer.columns) == ["prediction", "probability", "top_k"]
    assert list(answer.index) == list(range(100, 100 + rows))
    assert list(answer["prediction"]) == [predictor.labels[int(i)].as_py() for i in expected.argmax(axis=1)]
    np.testing.assert_allclose(answer["probability"], expected.max(axis=1), rtol=1e-4)
    assert [pairs[0]["label"] for pairs in answer["top_k"]] == list(answer["prediction"])


def _requests(values: list[str]) -> dict[str, object]:
    """The ways to ask MLflow's server for the answers to a column."""
    records = [{"image": value} for value in values]
    return {
        "dataframe_split": {"columns": ["image"], "data": [[value] for value in values]},
        "dataframe_records": records,
        "instances": records,
        "inputs": {"image": values},
    }


@pytest.mark.parametrize("form", ["dataframe_split", "dataframe_records", "instances", "inputs"])
def test_a_server_takes_images_in_base64_however_it_is_asked(uri: str, form: str) -> None:
    model, frame = mlflow.pyfunc.load_model(uri), _frame(3)
    file = io.BytesIO()
    Image.new("L", (20, 30), 200).save(file, "PNG")
    frame.iloc[1, 0] = file.getvalue()
    texts = [base64.encodebytes(image).decode() for image in frame["image"]]
    body = json.dumps({form: _requests(texts)[form]})
    answer = invocations(body, "application/json", model, model.metadata.get_input_schema())
    found = [row["probability"] for row in json.loads(answer.response)["predictions"]]
    assert found == list(model.predict(frame)["probability"])


def test_pixels_that_could_be_base64_stay_pixels(images: Path) -> None:
    grey = PyfuncModel(images).predict(pd.DataFrame({"image": [b"A" * 48]}))
    predictor = Predictor.load(images)
    (expected,) = predictor.answer(pa.array([b"A" * 48]))[1].to_pylist()
    assert list(grey["probability"]) == [expected]


LOADS = """
import sys
from sparkdl.scoring.pyfunc import PyfuncModel
PyfuncModel(sys.argv[1])
slow = {"torch._dynamo", "torch._inductor", "pyspark", "matplotlib", "numba"}
print(sorted(slow & sys.modules.keys()), [name for name in sys.modules if name.startswith("sparkdl.data.preparing")])
"""


def test_a_server_loads_neither_compilers_nor_spark_nor_what_prepares(images: Path) -> None:
    program = [sys.executable, "-c", LOADS, str(images)]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[] []\n"


def test_the_kept_example_is_one_that_the_model_answers(uri: str) -> None:
    model = mlflow.pyfunc.load_model(uri)
    assert len(model.predict(model.input_example)) == 1


def test_a_missing_column_and_rows_of_another_size_are_named(images: Path) -> None:
    model = PyfuncModel(images)
    with pytest.raises(DataError, match="the rows lack the columns 'image'"):
        model.predict(pd.DataFrame({"picture": [bytes(48)]}))
    with pytest.raises(DataError, match=r"no image \(47 bytes, not the 48 of 8 x 6 x 1 raw pixels, and it begins"):
        model.predict(pd.DataFrame({"image": [bytes(47)]}))
    with pytest.raises(DataError, match="column 'image' must hold binary"):
        model.predict(pd.DataFrame({"image": [[1.5]]}))
