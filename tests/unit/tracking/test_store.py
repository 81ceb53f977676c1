import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from mlflow import MlflowClient

from sparkdl.errors import TrackingError
from sparkdl.settings import Tracking
from sparkdl.tracking import check_store
from sparkdl.tracking.store import check_reachable, connect, experiment_id, our_calls

CERTIFICATE = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -addext subjectAltName=DNS:localhost"


class Answer(BaseHTTPRequestHandler):
    """Says yes to whatever is asked."""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate that nobody vouches for, with its key beside it."""
    folder = tmp_path_factory.mktemp("tls")
    files = ["-out", str(folder / "certificate.pem"), "-keyout", str(folder / "key.pem")]
    subprocess.run([*CERTIFICATE.split(), *files], check=True, capture_output=True)
    return folder / "certificate.pem"


@pytest.fixture
def server(certificate: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a server with that certificate; with the parameter "both sides", it asks for the client's, too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    if getattr(request, "param", "") == "both sides":
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate)
    with ThreadingHTTPServer(("localhost", 0), Answer) as http:
        http.socket = context.wrap_socket(http.socket, server_side=True)
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"https://localhost:{http.server_address[1]}"
        http.shutdown()


@pytest.mark.filterwarnings("ignore:Unverified HTTPS")
@pytest.mark.parametrize(
    "variable", ["MLFLOW_TRACKING_SERVER_CERT_PATH", "REQUESTS_CA_BUNDLE", "MLFLOW_TRACKING_INSECURE_TLS"]
)
def test_a_server_is_trusted_by_mlflows_own_settings(
    server: str, certificate: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TrackingError, match="certificate verify failed"):
        connect(Tracking(uri=server))
    monkeypatch.setenv(variable, "true" if variable.endswith("INSECURE_TLS") else str(certificate))
    assert connect(Tracking(uri=server)).search_experiments() == []


@pytest.mark.parametrize("server", ["both sides"], indirect=True)
def test_a_server_that_asks_who_we_are_is_shown_mlflows_certificate(
    server: str, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(certificate))
    with pytest.raises(TrackingError, match="cannot use the tracking store"):
        connect(Tracking(uri=server))
    both = certificate.with_name("both.pem")
    both.write_text(certificate.read_text() + certificate.with_name("key.pem").read_text())
    monkeypatch.setenv("MLFLOW_TRACKING_CLIENT_CERT_PATH", str(both))
    assert connect(Tracking(uri=server)).search_experiments() == []


def test_what_mlflow_is_told_by_the_environment_lasts_until_the_last_of_us_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "7")
    monkeypatch.delenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", raising=False)
    for _ in range(2):
        with ExitStack() as second:
            with our_calls():
                second.enter_context(our_calls())
            assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"
            assert os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] == "true"
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "7"
        assert "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT" not in os.environ


def test_settings_that_contradict_each_other_are_told(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(certificate))
    monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "true")
    with pytest.raises(TrackingError, match="server_cert_path"):
        connect(Tracking(uri="https://localhost:9"))


def test_to_ask_whether_runs_can_be_recorded_makes_nothing(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/records/mlflow.db"
    assert check_store(Tracking(uri=uri, experiment="tests")) == f"{uri}, experiment tests"
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_does_not_answer_is_an_error_unless_runs_may_begin_without_it(tmp_path: Path) -> None:
    away = Tracking(uri="http://me:hunter2@127.0.0.1:9", spool=str(tmp_path))
    with pytest.raises(TrackingError, match=r"cannot use the tracking store http://\*\*\*@127\.0\.0\.1:9"):
        check_store(away)
    assert f"records are kept in {tmp_path}" in check_store(away.model_copy(update={"offline": True}))


def test_runs_that_make_an_experiment_at_the_same_time_share_it(store: str) -> None:
    together = threading.Barrier(4, timeout=60)  # one that fails does not leave the others waiting

    def made(client: MlflowClient) -> list[str]:
        found = []
        for number in range(5):
            together.wait()
            found.append(experiment_id(client, f"new {number}"))
        return found

    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(made, [MlflowClient(store) for _ in range(4)])
    assert others == [first] * 3


def test_no_proxy_is_asked_for_a_server_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "intranet")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        check_reachable(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert os.environ["no_proxy"].startswith("intranet,")
    with pytest.raises(TrackingError, match="proxy"):  # the user's own, for everything else
        check_reachable("http://mlflow.example:5000")
