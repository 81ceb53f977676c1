"""A registered model as a plain MLflow pyfunc, over pandas rows. Runs wherever MLflow loads it."""

from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from sparkdl.errors import DataError
from sparkdl.scoring.model_card import ModelCard
from sparkdl.scoring.predictor import Predictor
from sparkdl.settings.score import BATCH_SIZE, TOP_K

__all__ = ["PyfuncModel"]

SPARSE = pa.struct(
    {"type": pa.int8(), "size": pa.int32(), "indices": pa.list_(pa.int32()), "values": pa.list_(pa.float64())}
)
"""A vector of Spark ML, as :func:`sparkdl.data.decode_sparse` reads it."""


class PyfuncModel:
    """What ``mlflow.pyfunc.load_model`` wraps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.predictor = Predictor.load(folder)

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """The columns of the model's task (``prediction`` and so on) for raw rows, with their index.

        ``params`` may have ``top_k`` and ``batch_size``. Raises :class:`DataError` for missing columns and rows of the
        wrong size. Preprocessing is Spark's, so where the model has it, the running Spark session does it, or an
        embedded one.
        """
        options = {"top_k": TOP_K, "batch_size": BATCH_SIZE} | (params or {})
        card = self.predictor.card
        missing = [name for name in card.raw_columns if name not in model_input]
        if missing:
            raise DataError(f"the rows lack the columns {', '.join(map(repr, missing))} that the model reads")
        inputs = self._preprocess(model_input) if card.preprocessing else _column(model_input[card.input_column], card)
        answer = self.predictor.answer(inputs, **options)
        predictions: pd.DataFrame = pa.table(answer, schema=self.predictor.task.answer).to_pandas()
        return predictions.set_index(model_input.index)

    def _preprocess(self, rows: pd.DataFrame) -> pa.Array:
        """The input that the fitted pipeline makes of raw rows, in their order."""
        from sparkdl.cluster import get_session
        from sparkdl.scoring.dataframe import INPUT, with_inputs

        card = self.predictor.card
        if rows.empty:  # Spark cannot tell the types of no rows
            return pa.array([], SPARSE) if card.input.kind == "sparse" else _column(pd.Series([], dtype=object), card)
        raw = get_session().createDataFrame(rows[list(card.raw_columns)])
        made = with_inputs(raw, card, self.folder).select(INPUT)
        if card.input.kind == "sparse":  # a row of numbers and lists, which pandas has no word for
            return pa.array([row[INPUT] and row[INPUT].asDict() for row in made.collect()], SPARSE)
        return _column(made.toPandas()[INPUT], card)


def _column(values: "pd.Series[Any]", card: ModelCard) -> pa.Array:
    """The input as Arrow's bytes, or lists of float32."""
    kind = pa.binary() if card.input.kind == "image" else pa.list_(pa.float32())
    try:
        return pa.array(values, kind, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        column, shape = card.input.column, card.input.shape
        raise DataError(f"column {column!r} must hold {kind} of shape {shape}: {error}") from error


def _load_pyfunc(data_path: str) -> PyfuncModel:
    """MLflow's entry point."""
    return PyfuncModel(Path(data_path))
