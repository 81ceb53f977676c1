"""Predicts for the rows of several requests at once, and answers each. Runs in the server's process, in one thread."""

import base64
import json
from collections.abc import Sequence
from datetime import date
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparkdl.errors import DataError
from sparkdl.scoring.open_form import checked_choice
from sparkdl.scoring.predictor import Predictor
from sparkdl.scoring.pyfunc import answer_types, column_type
from sparkdl.scoring.raw_inputs import RawInputs
from sparkdl.scoring.rows import answer_inputs, refusal
from sparkdl.serving.request_rows import RequestRows

__all__ = ["Answerer"]


class Answerer:
    """A model that answers several requests at once, each as if it were alone.

    ``form`` is the form of the model to use; see :func:`sparkdl.score`. Raises :class:`~sparkdl.errors.ModelError` for
    a folder without a complete model, :class:`~sparkdl.errors.ConfigError` for a form that the model does not have, and
    :class:`~sparkdl.errors.OnlySparkError` for a preprocessing stage that only Spark can apply.
    """

    def __init__(self, folder: Path, *, form: str = "auto") -> None:
        self.predictor = Predictor.load(folder, form=checked_choice(form))
        self.card = self.predictor.card
        self._raw = RawInputs.open(folder, self.card)
        self._types = answer_types(self.card)

    def answer(self, requests: Sequence[RequestRows]) -> list[bytes | DataError]:
        """For each request its JSON, or the error in its rows. All requests must have the same ``params``."""
        try:
            columns = {name: self._arrow(name, requests) for name in self.card.raw_columns}
        except DataError as error:  # one of the requests is invalid: halve them until it is found
            if len(requests) == 1:
                return [error]
            half = len(requests) // 2
            return [*self.answer(requests[:half]), *self.answer(requests[half:])]
        params = requests[0].params
        answers, reasons = answer_inputs(
            self.predictor, self._raw.read(columns), top_k=params.top_k, batch_size=params.batch_size
        )
        values = [_values(answer.cast(field.type)) for field, answer in zip(self._types, answers, strict=True)]
        rows = [dict(zip(self._types.names, row, strict=True)) for row in zip(*values, strict=True)]
        responses: list[bytes | DataError] = []
        start = 0
        for request in requests:
            end = start + request.count
            refused = None if reasons is None else refusal(reasons[start:end])
            responses.append(refused or json.dumps({"predictions": rows[start:end]}, default=_plain).encode())
            start = end
        return responses

    def _arrow(self, name: str, requests: Sequence[RequestRows]) -> pa.Array:
        """A raw column of all requests' rows. Raises :class:`DataError` if its values are of different types."""
        values = list(chain.from_iterable(request.columns[name] for request in requests))
        kind = column_type(self.card)
        try:
            return pa.array(values, kind)
        except (ValueError, TypeError, OverflowError) as error:
            expected = "values of one type" if kind is None else f"{kind}"
            raise DataError(f"column {name!r} must hold {expected}: {str(error).splitlines()[0]}") from None


def _values(column: pa.Array) -> list[Any]:
    """The same as ``to_pylist``, which makes an Arrow object per value and so takes longer than a small network."""
    kind = column.type
    if column.null_count:
        return list(column.to_pylist())
    if pa.types.is_list(kind):
        flat, ends = _values(column.flatten()), accumulate(column.value_lengths().to_numpy().tolist(), initial=0)
        return [flat[start:end] for start, end in pairwise(ends)]
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return [dict(zip(names, row, strict=True)) for row in zip(*map(_values, column.flatten()), strict=True)]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return list(column.to_numpy().tolist())
    return list(column.to_pylist())


def _plain(value: Any) -> str:
    """Values of types that JSON does not have, as MLflow's server writes them."""
    if isinstance(value, date):  # or a datetime, which is a subclass
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.encodebytes(value).decode()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
