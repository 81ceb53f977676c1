"""The rows of a request, in the four JSON formats that MLflow's server accepts.

They are described at https://mlflow.org/docs/latest/ml/deployment/deploy-model-locally: ``dataframe_split``,
``dataframe_records``, ``instances`` and ``inputs``, and optionally ``params``.
"""

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from sparkdl.data.model_card import ModelCard
from sparkdl.errors import DataError
from sparkdl.settings.score import BATCH_SIZE, TOP_K

__all__ = ["Params", "RequestRows", "read_request"]

_FORMS = "dataframe_split", "dataframe_records", "instances", "inputs"
_SHOWN = 5
"""The most names that an error lists."""


@dataclass(frozen=True)
class Params:
    """The options of a request; see :meth:`~sparkdl.scoring.pyfunc.PyfuncModel.predict`."""

    top_k: int = TOP_K
    batch_size: int = BATCH_SIZE


@dataclass(frozen=True)
class RequestRows:
    """The rows of one request."""

    columns: Mapping[str, Sequence[Any]]
    """The values of each raw column of the model, all of the same length. Values are as JSON has them, except that
    columns of bytes, dates and times hold Python's."""
    count: int
    params: Params = Params()


def read_request(body: bytes, card: ModelCard) -> RequestRows:
    """The rows in a request's body, for a model with this card.

    Columns that the model does not read are left out. Raises :class:`DataError`, in one line, for a body that is not a
    valid request, and for a missing column.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise DataError(f"the request is not valid JSON: {error}") from None
    forms = [form for form in _FORMS if form in request] if isinstance(request, dict) else []
    if len(forms) != 1:
        found = _listed(request) if isinstance(request, dict) else f"a {type(request).__name__}"
        raise DataError(f"a request must be an object with one of {', '.join(_FORMS)}, but this one has {found}")
    (form,) = forms
    if unknown := request.keys() - {form, "params"}:
        raise DataError(
            f"the request has the unknown keys {_listed(unknown)}; beside {form!r} it may only have 'params'"
        )
    params = _params(request.get("params"))
    columns = _READERS[form](request[form], form, card)
    (count,) = {len(values) for values in columns.values()}
    return RequestRows({name: _typed(columns[name], name, kind) for name, kind in _kinds(card)}, count, params)


def _params(asked: Any) -> Params:
    if asked is None:
        return Params()
    known = Params.__dataclass_fields__
    if not isinstance(asked, dict) or not asked.keys() <= known.keys():
        raise DataError(f"params must be an object with no other keys than {' and '.join(known)}")
    for name, value in asked.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise DataError(f"params.{name} must be a whole number from 1, not {json.dumps(value)[:50]}")
    return Params(**asked)


def _of_split(content: Any, form: str, card: ModelCard) -> dict[str, list[Any]]:
    if not isinstance(content, dict) or not {"columns", "data"} <= content.keys() <= {"columns", "data", "index"}:
        raise DataError(f"{form!r} must be an object with 'columns' and 'data', a list of rows")
    names, rows = content["columns"], content["data"]
    if not isinstance(names, list) or not isinstance(rows, list):
        raise DataError(f"in {form!r}, 'columns' and 'data' must be lists")
    for place, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(names):
            raise DataError(f"{form!r}: row {place} must be a list of {len(names)} values, one of each column")
    by_name = {str(name): [row[place] for row in rows] for place, name in enumerate(names)}
    return _of_columns(by_name, form, card)


def _of_records(content: Any, form: str, card: ModelCard) -> dict[str, list[Any]]:
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise DataError(f"{form!r} must be a list of objects, one for each row")
    names = {name for row in content for name in row}
    return _of_columns({name: [row.get(name) for row in content] for name in names}, form, card)


def _of_instances(content: Any, form: str, card: ModelCard) -> dict[str, list[Any]]:
    """A list of objects, or, if the model reads a single column, of its values."""
    if isinstance(content, list) and content and not isinstance(content[0], dict) and len(card.raw_columns) == 1:
        return dict.fromkeys(card.raw_columns, content)
    return _of_records(content, form, card)


def _of_inputs(content: Any, form: str, card: ModelCard) -> dict[str, list[Any]]:
    """An object with a list for each column, or the same as ``instances``."""
    if not isinstance(content, dict):
        return _of_instances(content, form, card)
    for name, values in content.items():
        if not isinstance(values, list):
            raise DataError(f"{form!r}: {name!r} must be a list of values, one for each row")
    if len(set(map(len, content.values()))) > 1:
        lengths = ", ".join(f"{len(values)} of {name!r}" for name, values in list(content.items())[:_SHOWN])
        raise DataError(f"{form!r}: all columns must have the same number of values, but there are {lengths}")
    return _of_columns(content, form, card)


_READERS: dict[str, Callable[[Any, str, ModelCard], dict[str, list[Any]]]] = {
    "dataframe_split": _of_split,
    "dataframe_records": _of_records,
    "instances": _of_instances,
    "inputs": _of_inputs,
}


def _of_columns(by_name: Mapping[str, list[Any]], form: str, card: ModelCard) -> dict[str, list[Any]]:
    """The model's raw columns: each is a column of the request, or a field inside one (see ``ModelCard.fields``)."""
    found: dict[str, list[Any]] = {}
    missing: list[str] = []
    for name in card.raw_columns:
        column, *below = card.fields.get(name, (name,))
        if name in by_name:
            found[name] = by_name[name]
        elif below and column in by_name:
            found[name] = [_inside(value, below) for value in by_name[column]]
        else:
            missing.append(name)
    if missing:
        has = _listed(by_name) if by_name else "no columns"
        raise DataError(f"the rows lack {_listed(missing)}, which the model reads; {form!r} has {has}")
    return found


def _inside(value: Any, path: Sequence[str]) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _kinds(card: ModelCard) -> list[tuple[str, str]]:
    """The raw columns with their Spark SQL types, images as bytes."""
    images = {spec.column for spec in card.inputs.values() if spec.kind == "image"}
    if not card.preprocessing and not card.inputs and card.input.kind == "image":
        images = {card.input_column}
    return [(name, "binary" if name in images else kind) for name, kind in card.raw_columns.items()]


def _typed(values: Sequence[Any], name: str, kind: str) -> Sequence[Any]:
    """JSON's values in the column's type: JSON has neither bytes nor times, so they come as texts."""
    parse = _PARSERS.get(kind)
    if parse is None:
        return values
    try:
        return [parse(value) if isinstance(value, str) else value for value in values]
    except (ValueError, OverflowError) as error:
        expected = "base64" if kind == "binary" else "a date or time in ISO 8601"
        raise DataError(f"column {name!r} is {kind}, but holds text that is not {expected}: {error}") from None


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:  # the text may contain line breaks
        return base64.b64decode("".join(text.split()), validate=True)


def _time(text: str) -> datetime:
    """A time in UTC, as a ``datetime`` without a zone. Texts without a zone are taken as UTC."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo is None else found.astimezone(UTC).replace(tzinfo=None)


def _date(text: str) -> date:
    return date.fromisoformat(text) if len(text) == len("2000-02-29") else _time(text).date()


_PARSERS: dict[str, Callable[[str], Any]] = {
    "binary": _bytes,
    "date": _date,
    "timestamp": _time,
    "timestamp_ntz": _time,
}


def _listed(names: Any) -> str:
    """The first names, quoted, for an error."""
    shown = [repr(str(name)[:50]) for name in list(names)[:_SHOWN]]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"{', '.join(shown)}{more}" if shown else "nothing"
