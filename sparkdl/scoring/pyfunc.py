"""A registered model as a plain MLflow pyfunc, over pandas rows. Runs wherever MLflow loads it."""

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
    """What ``mlflow.pyfunc.load_model`` wraps."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.predictor = Predictor.load(folder, form="auto")
        """The form for requests that name none."""
        self._others: dict[str, Predictor] = {}
        self._answer = answer_types(self.predictor.card)
        self._raw, self._only_spark = _open_raw_inputs(folder, self.predictor.card)

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """The columns of the model's task (``prediction`` and so on) for raw rows, with their index.

        ``params`` may have ``top_k``, ``batch_size`` and ``form``, which of the model's forms answers (see
        :func:`sparkdl.score`). Raises :class:`DataError` for missing columns, and for rows that are not what the model
        was trained on, and :class:`~sparkdl.errors.ConfigError` for a form that the model does not have. Preprocessing
        needs no Spark; only stages of a pipeline of the user's own may, which the running Spark session applies, or an
        embedded one. Where there can be none, :class:`OnlySparkError` names the first of them.
        """
        options: dict[str, Any] = {"top_k": TOP_K, "batch_size": BATCH_SIZE, "form": "auto"} | (params or {})
        predictor = self._in_form(options.pop("form"))
        card = self.predictor.card
        found = {name: frame_column(model_input, name, card.fields.get(name, ())) for name in card.raw_columns}
        missing = [name for name, column in found.items() if column is None]
        if missing:
            raise DataError(f"the rows lack the columns {', '.join(map(repr, missing))} that the model reads")
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
        """The predictor with this form of the network, which is opened when it is first asked for."""
        if form == "auto":
            return self.predictor
        if form not in self._others:
            self._others[form] = Predictor.load(self.folder, form=checked_choice(form))
        return self._others[form]

    def _read(self, rows: "dict[str, pd.Series[Any]]") -> pa.Array:
        """The input that is made of raw columns. Raises :class:`DataError` where rows are refused."""
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
        """The same by Spark itself."""
        try:
            from sparkdl.cluster import get_session
            from sparkdl.scoring.by_spark import INPUT, with_inputs

            session = get_session()
        except Exception as error:  # no package, no Java, a worker of Spark, a server that is gone
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise OnlySparkError(
                f"{self._only_spark}, and there is no Spark session here ({reason}); score with sparkdl.score, or"
                " prepare with `stages` in place of that pipeline"
            ) from None
        card = self.predictor.card
        if rows.empty:  # Spark cannot tell the types of no rows
            return pa.array([], SPARSE) if card.input.kind == "sparse" else _column(pd.Series([], dtype=object), card)
        made = with_inputs(session.createDataFrame(rows), card, self.folder).select(INPUT)
        if card.input.kind == "sparse":  # a row of numbers and lists, which pandas has no word for
            return pa.array([row[INPUT] and row[INPUT].asDict() for row in made.collect()], SPARSE)
        return _column(made.toPandas()[INPUT], card)


def answer_types(card: ModelCard) -> pa.Schema:
    """What a server answers. Decimals, for which MLflow has no word, are the doubles that the signature promises."""
    if card.label_type and card.label_type.startswith("decimal"):
        card = card.model_copy(update={"label_type": "double"})
    return answering_task(card).answer


def column_type(card: ModelCard) -> pa.DataType | None:
    """What the only raw column of a model that does not preprocess is read as; None of others: as what it is."""
    if card.preprocessing:
        return None
    return pa.binary() if card.input.kind == "image" else pa.list_(pa.float32())


def _open_raw_inputs(folder: Path, card: ModelCard) -> tuple[RawInputs | None, OnlySparkError | None]:
    """What becomes of raw rows without Spark; or why they need it."""
    try:
        return RawInputs.open(folder, card), None
    except OnlySparkError as error:
        return None, error


def _pixels(values: "pd.Series[Any]", size: int | None) -> "pd.Series[Any]":
    """A raw column, of which the values may be the bytes of images of this size."""
    return values if size is None else values.map(lambda value: _bytes(value, size))


def _arrow(values: "pd.Series[Any]") -> pa.Array:
    """A raw column; NaN among floats is one, and elsewhere no value."""
    if values.dtype == object and len(values) and hasattr(values.iloc[0], "toArray"):  # vectors of Spark ML
        values = values.map(lambda vector: vector.toArray())
    try:
        found = pa.array(values, from_pandas=values.dtype.kind != "f")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(f"column {values.name!r} holds values of different types: {error}") from None
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _column(values: "pd.Series[Any]", card: ModelCard) -> pa.Array:
    """The input as Arrow's bytes, or lists of float32."""
    kind = column_type(card)
    if card.input.kind == "image":
        values = values.map(lambda value: _bytes(value, card.input.row_bytes))
    try:
        return pa.array(values, kind, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        column, shape = card.input.column, card.input.shape
        raise DataError(f"column {column!r} must hold {kind} of shape {shape}: {error}") from error


def _bytes(value: Any, size: int) -> Any:
    """The bytes of an image: of a file, or this many of pixels.

    MLflow's server hands on what it is sent as ``inputs`` or ``instances`` as it is: text in base64.
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
