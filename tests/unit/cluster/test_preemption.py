"""The notice of clouds, asked of a server that answers as their documentation says."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sparkdl.cluster import preemption
from sparkdl.cluster.preemption import is_preempted

TOKEN = "of-this-host"


class Metadata(BaseHTTPRequestHandler):
    """What AWS, Google and Azure tell a host about itself."""

    def do_PUT(self) -> None:
        known = self.path == "/latest/api/token" and "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
        self._answer(TOKEN if known else None)

    def do_GET(self) -> None:
        taken = self.server.taken  # type: ignore[attr-defined]
        path = self.path.partition("?")[0]
        aws = self.headers["X-aws-ec2-metadata-token"] == TOKEN
        google, azure = self.headers["Metadata-Flavor"] == "Google", self.headers["Metadata"] == "true"
        if path == "/latest/meta-data/spot/instance-action" and aws:
            self._answer('{"action": "terminate", "time": "2026-01-01T00:00:00Z"}' if taken else None)
        elif path == "/computeMetadata/v1/instance/preempted" and google:
            self._answer("TRUE" if taken else "FALSE")
        elif path == "/metadata/instance/compute/name" and azure:
            self._answer("here")
        elif path == "/metadata/scheduledevents" and azure:
            others = {"EventType": "Preempt", "Resources": ["elsewhere"]}
            ours = {"EventType": "Preempt", "Resources": ["here"]}
            self._answer(json.dumps({"Events": [others, *([ours] if taken else [])]}))
        else:
            self._answer(None)

    def _answer(self, text: str | None) -> None:
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setattr(preemption, "METADATA", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_a_host_is_preempted_when_its_cloud_says_so_and_not_before(cloud: str, server: ThreadingHTTPServer) -> None:
    server.taken = False  # type: ignore[attr-defined]
    assert not is_preempted(cloud)
    server.taken = True  # type: ignore[attr-defined]
    assert is_preempted(cloud)


def test_a_file_is_a_notice_as_soon_as_it_is_there(tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    assert not is_preempted(str(notice))
    notice.touch()
    assert is_preempted(str(notice))


def test_a_metadata_server_that_does_not_answer_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preemption, "METADATA", "http://127.0.0.1:9")
    with pytest.raises(OSError, match="refused"):
        is_preempted("aws")
