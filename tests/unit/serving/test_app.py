"""The server's application: what it answers is what the model says, whoever asks at the same time."""

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from starlette.testclient import TestClient

from sparkdl.scoring.pyfunc import PyfuncModel
from sparkdl.serving import app as server_app
from sparkdl.serving.answerer import Answerer
from sparkdl.serving.app import create_app

PERSON = {"age": 1.5, "rooms": 3, "side": "port", "home": {"lat": 50.5}, "born": "2000-02-29"}
BAD = {
    "a text where a number belongs": ({"age": "old"}, "column 'age' holds string, and the model was trained on double"),
    "values of two types": ({"side": ["port"]}, "column 'side'"),
    "a number that is not whole": ({"rooms": 2.5}, "column 'rooms': 2.5 is no int, which the model was trained on"),
    "a number beyond all types": ({"rooms": 2**70}, "column 'rooms'"),
    "a half of a character": ({"side": "\ud800"}, "column 'side' must hold values of one type"),
    "too large for float32": ({"age": 1e300}, "has values that are NaN, infinite or beyond float32"),
    "no date": ({"born": "yesterday"}, "column 'born' is date, but holds text that is not a date or time"),
}


class Held(Answerer):
    """Answers nothing until it is let, so that requests gather."""

    may = threading.Event()
    batches: list[int]

    def answer(self, requests: Any) -> Any:
        self.batches.append(len(requests))
        assert self.may.wait(20)
        return super().answer(requests)


@pytest.fixture
def held(people: Path) -> Iterator[tuple[Held, TestClient]]:
    answerer = Held(people)
    answerer.may, answerer.batches = threading.Event(), []
    with TestClient(create_app(answerer, max_batch=64, max_wait=0.0)) as client:
        yield answerer, client


@pytest.fixture
def client(people: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Answerer(people), max_batch=64, max_wait=0.0)) as client:
        yield client


def ask(client: TestClient, **request: Any) -> Any:
    return client.post("/invocations", content=json.dumps(request), headers={"Content-Type": "application/json"})


def predicted(people: Path, rows: list[dict[str, Any]], **params: Any) -> list[dict[str, Any]]:
    frame = pd.DataFrame(rows)
    frame["born"] = pd.to_datetime(frame["born"]).dt.date
    return json.loads(PyfuncModel(people).predict(frame, params).to_json(orient="records", double_precision=15))


def test_it_answers_what_the_registered_model_says(client: TestClient, people: Path) -> None:
    rows = [PERSON, PERSON | {"age": -7, "side": "stern"}]
    answer = ask(client, dataframe_records=rows, params={"top_k": 1})
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    found, expected = answer.json()["predictions"], predicted(people, rows, top_k=1)
    assert [row["prediction"] for row in found] == [row["prediction"] for row in expected]
    assert [row["probability"] for row in found] == pytest.approx([row["probability"] for row in expected])
    assert [len(row["top_k"]) for row in found] == [1, 1]


def test_images_are_answered_in_base64(images: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 48), dtype=np.uint8)
    expected = PyfuncModel(images).predict(pd.DataFrame({"image": [row.tobytes() for row in pixels]}))
    with TestClient(create_app(Answerer(images), max_batch=64, max_wait=0.0)) as client:
        found = ask(client, inputs={"image": [b64encode(row.tobytes()).decode() for row in pixels]}).json()
        refused = ask(client, inputs={"image": [b64encode(bytes(47)).decode()]})
    assert [row["prediction"] for row in found["predictions"]] == list(expected["prediction"])
    assert [row["probability"] for row in found["predictions"]] == pytest.approx(list(expected["probability"]))
    assert refused.status_code == 400 and "47 bytes, not the 48 of 8 x 6 x 1" in refused.json()["message"]


def test_no_rows_have_no_predictions(client: TestClient) -> None:
    answer = ask(client, inputs={name: [] for name in PERSON})
    assert (answer.status_code, answer.json()) == (200, {"predictions": []})


@pytest.mark.parametrize("kind", BAD)
def test_a_wrong_request_is_refused_in_one_line_and_those_that_come_with_it_are_answered(
    kind: str, held: tuple[Held, TestClient], people: Path
) -> None:
    answerer, client = held
    changes, said = BAD[kind]
    requests = [PERSON, PERSON | {"age": 7}, PERSON | changes, PERSON | {"age": -7, "rooms": 2.0}]
    with ThreadPoolExecutor(8) as threads:
        first = threads.submit(ask, client, instances=[PERSON])
        while not answerer.batches:
            pass
        asked = [threads.submit(ask, client, instances=[row]) for row in requests]
        threading.Timer(0.3, answerer.may.set).start()
        answers = [each.result() for each in [first, *asked]]
    assert max(answerer.batches) > 1  # so that they were in one batch
    assert [answer.status_code for answer in answers] == [200, 200, 200, 400, 200]
    message = answers[3].json()["message"]
    assert said in message and len(message.splitlines()) == 1
    expected = predicted(people, [requests[0], requests[1], requests[3]])
    found = [answer.json()["predictions"][0] for answer in [*answers[1:3], answers[4]]]
    assert [row["probability"] for row in found] == pytest.approx([row["probability"] for row in expected])


def test_a_request_of_another_kind_or_size_is_refused(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_app, "MAX_BODY", 1 << 20)
    rows = json.dumps({"instances": [PERSON] * 20_000}).encode()
    large = client.post("/invocations", content=rows, headers={"Content-Type": "application/json"})
    piecewise = client.post("/invocations", content=iter([rows[:1000], rows[1000:]]))  # of no declared length
    csv = client.post("/invocations", content=b"age\n1", headers={"Content-Type": "text/csv"})
    assert [answer.status_code for answer in (large, piecewise, csv)] == [413, 413, 415]
    assert large.json()["message"] == "the request has more than 1 MB; send fewer rows at a time"
    assert csv.json()["message"] == "the server reads only application/json, not text/csv"
    assert client.get("/invocations").status_code == 405


def test_a_model_that_breaks_is_an_error_of_the_server_and_no_end_of_it(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_app, "read_request", lambda *_: 1 / 0)
    answer = ask(client, instances=[PERSON])
    assert answer.status_code == 500 and "its log has the reason" in answer.json()["message"]
    monkeypatch.undo()
    assert ask(client, instances=[PERSON]).status_code == 200


def test_its_health_and_its_figures_can_be_asked_for(client: TestClient) -> None:
    assert [client.get(path).status_code for path in ("/ping", "/health", "/version")] == [200] * 3
    ask(client, instances=[PERSON, PERSON])
    ask(client, instances=[])
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    figures = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert figures['sparkdl_requests_total{status="200"}'] == "1"
    assert figures['sparkdl_requests_total{status="400"}'] == figures["sparkdl_errors_total"] == "1"
    assert figures["sparkdl_rows_total"] == "2"
    assert figures['sparkdl_batch_rows_bucket{le="1"}'] == "0" and figures['sparkdl_batch_rows_bucket{le="2"}'] == "1"
    assert figures["sparkdl_request_seconds_count"] == figures['sparkdl_request_seconds_bucket{le="+Inf"}'] == "2"
