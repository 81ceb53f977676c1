"""The rows of a request, or what is wrong with it, in one line."""

import json
from base64 import b64encode, encodebytes
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pytest

from sparkdl.data.model_card import ModelCard
from sparkdl.errors import DataError
from sparkdl.serving.request_rows import Params, read_request

ROWS = [
    {"age": 1.5, "rooms": 3, "side": "port", "home": {"lat": 50.5, "lon": 1}, "born": "2000-02-29", "more": [1]},
    {"age": 2, "rooms": None, "side": "star", "home": None, "born": "1969-07-20T23:59:00", "more": None},
]
NAMES = list(ROWS[0])
FORMS: dict[str, Any] = {
    "dataframe_split": {"columns": NAMES, "data": [list(row.values()) for row in ROWS], "index": [0, 1]},
    "dataframe_records": ROWS,
    "instances": ROWS,
    "inputs": {name: [row[name] for row in ROWS] for name in NAMES},
}


@pytest.fixture(scope="module")
def card(people: Path) -> ModelCard:
    return ModelCard.load(people)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_are_read_in_each_form(form: str, card: ModelCard) -> None:
    found = read_request(json.dumps({form: FORMS[form]}).encode(), card)
    assert found.columns == {
        "age": [1.5, 2],
        "rooms": [3, None],
        "side": ["port", "star"],
        "home.lat": [50.5, None],
        "born": [date(2000, 2, 29), date(1969, 7, 20)],
    }
    assert found.count == 2 and found.params == Params()


def test_the_only_column_needs_no_name(images: Path) -> None:
    body = json.dumps({"instances": [b64encode(bytes(48)).decode(), encodebytes(b"\xff" * 48).decode()]})
    found = read_request(body.encode(), ModelCard.load(images))
    assert found.columns == {"image": [bytes(48), b"\xff" * 48]}


def test_times_without_a_zone_are_utc(card: ModelCard) -> None:
    timed = card.model_copy(update={"raw_columns": {"at": "timestamp"}})
    body = json.dumps({"inputs": {"at": ["2026-01-01T01:00:00+02:00", "2026-01-01 00:00:00", "2026-01-01T00:00:00Z"]}})
    found = read_request(body.encode(), timed).columns["at"]
    assert found == [datetime(2025, 12, 31, 23), datetime(2026, 1, 1), datetime(2026, 1, 1)]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "the request is not valid JSON: Expecting property name"),
        ("[" * 100_000, "the request is not valid JSON"),
        (b"\xff\xfe\xfd", "the request is not valid JSON"),
        ([1], "a request must be an object with one of dataframe_split.*, but this one has a list"),
        ({}, "but this one has nothing"),
        ({"instances": [], "inputs": []}, "but this one has 'instances', 'inputs'"),
        (
            {"instances": ROWS, "parms": {}},
            "the request has the unknown keys 'parms'; beside 'instances' it may only have 'params'",
        ),
        (
            {"instances": ROWS, "params": {"topk": 1}},
            "params must be an object with no other keys than top_k and batch_size",
        ),
        ({"instances": ROWS, "params": {"top_k": 0}}, "params.top_k must be a whole number from 1, not 0"),
        ({"instances": ROWS, "params": {"top_k": True}}, "params.top_k must be a whole number from 1, not true"),
        ({"instances": [1, 2]}, "'instances' must be a list of objects, one for each row"),
        ({"instances": [{"age": 1, "born": None}]}, "the rows lack 'rooms', 'side', 'home.lat', which the model reads"),
        ({"instances": []}, "the rows lack 'age', .*; 'instances' has no columns"),
        ({"inputs": {"age": 1}}, "'inputs': 'age' must be a list of values, one for each row"),
        (
            {"inputs": {"age": [1], "born": []}},
            "all columns must have the same number of values, but there are 1 of 'age', 0 of",
        ),
        ({"dataframe_split": ROWS}, "'dataframe_split' must be an object with 'columns' and 'data', a list of rows"),
        (
            {"dataframe_split": {"columns": NAMES, "data": [[1]]}},
            "row 0 must be a list of 6 values, one of each column",
        ),
        ({"instances": [ROWS[0] | {"born": "29/2/2000"}]}, "column 'born' is date, but holds text that is not a date"),
    ],
)
def test_what_is_wrong_with_a_request_is_named_in_one_line(body: Any, said: str, card: ModelCard) -> None:
    sent = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    with pytest.raises(DataError, match=said) as error:
        read_request(sent, card)
    assert len(str(error.value).splitlines()) == 1


def test_text_that_is_no_base64_is_named(images: Path) -> None:
    with pytest.raises(DataError, match="column 'image' is binary, but holds text that is not base64"):
        read_request(json.dumps({"inputs": {"image": ["äh"]}}).encode(), ModelCard.load(images))
