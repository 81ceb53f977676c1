"""A registered model as an MLflow pyfunc, which predicts for pandas rows. Runs wherever MLflow loads it."""

import base64
import binascii
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from sparkdl.data.model_card import ModelCard
from sparkdl.data.raw_columns import frame_column
from sparkdl.errors import DataError, OnlySparkError
from sparkdl.preprocessing.decode_image import is_image_file
from sparkdl.preprocessing.values import SPARSE
from sparkdl.scoring.open_form import checked_choice
from sparkdl.scoring.predictor import Predictor, answering_task
from sparkdl.scoring.raw_inputs import RawInputs
from sparkdl.scoring.rows import refusal
from sparkdl.settings.score import BATCH_SIZE, TOP_K

__all__ = ["PyfuncModel", "answer_types", "column_type"]

_BASE64 = re.compile(rb"[A-Za-z0-9+/\s]+={0,2}\s*")


class PyfuncModel:
    """The model inside the one that ``mlflow.pyfunc.load_model`` returns."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.predictor = Predictor.load(folder, form="auto")
        """The predictor for requests without ``form``."""
        self._others: dict[str, Predictor] = {}
        self._answer = answer_types(self.predictor.card)
        self._raw, self._only_spark = _open_raw_inputs(folder, self.predictor.card)

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """The columns of the model's task (``prediction`` and so on) for raw rows, with the same index.

        ``params`` may have ``top_k``, ``batch_size`` and ``form`` (see :func:`sparkdl.score`). Preprocessing needs no
        Spark, except for some stages of a user's own pipeline, which the running Spark session applies, or an embedded
        one. Raises :class:`DataError` for missing columns and for rows that the model cannot read,
        :class:`~sparkdl.errors.ConfigError` for a form that the model does not have, and :class:`OnlySparkError`, with
        the name of a stage, if the preprocessing needs Spark and there is none.
        """
        options: dict[str, Any] = {"top_k": TOP_K, "batch_size": BATCH_SIZE, "form": "auto"} | (params or {})
        predictor = self._in_form(options.pop("form"))
        card = self.predictor.card
        found = {name: frame_column(model_input, name, card.fields.get(name, ())) for name in card.raw_columns}
        missing = [name for name, column in found.items() if column is None]
        if missing:
            raise DataError(f"the rows lack the columns {', '.join(map(repr, missing))}, which the model reads")
        if self._raw is None:
            inputs = self._in_spark(pd.DataFrame(found, index=model_input.index))
        else:
            inputs = self._read({name: column for name, column in found.items() if column is not None})
        answer = predictor.answer(inputs, **options)
        columns = zip(self._answer, answer, strict=True)
        predictions = pd.DataFrame({field.name: column.cast(field.type).to_pandas() for field, column in columns})
        predictions.index = model_input.index
        return predictions

    def _in_form(self, form: str) -> Predictor:
        """The predictor with this form of the network, which is opened when it is first requested."""
        if form == "auto":
            return self.predictor
        if form not in self._others:
            self._others[form] = Predictor.load(self.folder, form=checked_choice(form))
        return self._others[form]

    def _read(self, rows: "dict[str, pd.Series[Any]]") -> pa.Array:
        """The model's input, made from raw columns. Raises :class:`DataError` if rows are refused."""
        card = self.predictor.card
        if card.preprocessing:
            images = {spec.column: spec.row_bytes for spec in card.inputs.values() if spec.kind == "image"}
            columns = {name: _arrow(_pixels(column, images.get(name))) for name, column in rows.items()}
        else:
            columns = {card.input_column: _column(rows[card.input_column], card)}
        assert self._raw is not None
        inputs, refused = self._raw.read(columns)
        if refused is not None and (error := refusal(refused)):
            raise error
        return inputs

    def _in_spark(self, rows: pd.DataFrame) -> pa.Array:
        """The model's input, made by Spark."""
        try:
            from sparkdl.cluster import get_session
            from sparkdl.scoring.by_spark import INPUT, with_inputs

            session = get_session()
        except Exception as error:  # no package, no Java, inside a Spark worker, or the Connect server is gone
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise OnlySparkError(
                f"{self._only_spark}, but there is no Spark session here ({reason}); score with sparkdl.score, or"
                " prepare the dataset with `stages` instead of that pipeline"
            ) from None
        card = self.predictor.card
        if rows.empty:  # Spark cannot infer types without rows
            return pa.array([], SPARSE) if card.input.kind == "sparse" else _column(pd.Series([], dtype=object), card)
        made = with_inputs(session.createDataFrame(rows), card, self.folder).select(INPUT)
        if card.input.kind == "sparse":  # a struct, for which pandas has no type
            return pa.array([row[INPUT] and row[INPUT].asDict() for row in made.collect()], SPARSE)
        return _column(made.toPandas()[INPUT], card)


def answer_types(card: ModelCard) -> pa.Schema:
    """The columns of a server's answer. Decimals become doubles, as in the signature: MLflow has no decimals."""
    if card.label_type and card.label_type.startswith("decimal"):
        card = card.model_copy(update={"label_type": "double"})
    return answering_task(card).answer


def column_type(card: ModelCard) -> pa.DataType | None:
    """The type of the only raw column of a model without preprocessing; None for others, whose columns keep theirs."""
    if card.preprocessing:
        return None
    return pa.binary() if card.input.kind == "image" else pa.list_(pa.float32())


def _open_raw_inputs(folder: Path, card: ModelCard) -> tuple[RawInputs | None, OnlySparkError | None]:
    """How raw rows become inputs without Spark, or the error that names the stage for which Spark is needed."""
    try:
        return RawInputs.open(folder, card), None
    except OnlySparkError as error:
        return None, error


def _pixels(values: "pd.Series[Any]", size: int | None) -> "pd.Series[Any]":
    """A raw column; if ``size`` is given, its values may be images in base64, of which this many bytes are pixels."""
    return values if size is None else values.map(lambda value: _bytes(value, size))


def _arrow(values: "pd.Series[Any]") -> pa.Array:
    """A raw column as Arrow. NaN stays NaN in a column of floats, and means null in others."""
    if values.dtype == object and len(values) and hasattr(values.iloc[0], "toArray"):  # vectors of Spark ML
        values = values.map(lambda vector: vector.toArray())
    try:
        found = pa.array(values, from_pandas=values.dtype.kind != "f")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"column {values.name!r} holds values of different types: {error}") from None
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _column(values: "pd.Series[Any]", card: ModelCard) -> pa.Array:
    """The input as an Arrow array of bytes or of lists of float32."""
    kind = column_type(card)
    if card.input.kind == "image":
        values = values.map(lambda value: _bytes(value, card.input.row_bytes))
    try:
        return pa.array(values, kind, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        column, shape = card.input.column, card.input.shape
        raise DataError(f"column {column!r} must hold {kind} of shape {shape}: {error}") from error


def _bytes(value: Any, size: int) -> Any:
    """The bytes of an image: an encoded file, or pixels of this many bytes.

    MLflow's server does not decode base64 in ``inputs`` and ``instances``, so that is done here.
    """
    if not isinstance(value, bytes) or not _BASE64.fullmatch(value):
        return value
    try:
        found = base64.b64decode(value)
    except binascii.Error:
        return value
    return found if len(found) == size or is_image_file(found) else value


def _load_pyfunc(data_path: str) -> PyfuncModel:
    """MLflow's entry point."""
    return PyfuncModel(Path(data_path))
