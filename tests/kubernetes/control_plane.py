"""etcd and Kubernetes' API server on this machine, with its rights (RBAC) and its admission on, and a client of it."""

import json
import secrets
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import yaml

from benchmarks.ports import free_ports

from .builds import API_SERVER, ETCD, program

MANIFESTS = Path(__file__).parents[2] / "conf" / "kubernetes"
NAMESPACE = "sparkdl"
START_SECONDS = 120
TOKEN_SECONDS = 7200
AUDIT = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"


@dataclass(frozen=True)
class ControlPlane:
    """The running API server."""

    url: str
    folder: Path
    session: requests.Session

    @property
    def certificate(self) -> Path:
        """By which clients know it."""
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def audit(self) -> Path:
        """A line of JSON for each request."""
        return self.folder / "audit.log"

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json", **query: str) -> Any:
        """What it answers to an administrator; None for what is not there."""
        answer = self.session.request(
            method,
            self.url + path,
            params=query,
            data=None if body is None else json.dumps(body),  # which is YAML, too
            headers={"Content-Type": kind},
            timeout=30,
        )
        if answer.status_code == requests.codes.not_found:
            return None
        assert answer.ok, f"{method} {path}: {answer.text}"
        return answer.json()

    def of_namespace(self, what: str) -> str:
        """The path of some resources."""
        return f"/api/v1/namespaces/{NAMESPACE}/{what}"

    def apply(self, file: Path) -> None:
        """What ``kubectl apply --server-side`` does."""
        for manifest in list_manifests(file):
            version, kind, names = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
            base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
            space = f"/namespaces/{names['namespace']}" if "namespace" in names else ""
            plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
            path = f"{base}{space}/{plural}/{names['name']}"
            self.ask("PATCH", path, manifest, "application/apply-patch+yaml", fieldManager="tests", force="true")

    def token(self, account: str, audience: str | None = None) -> str:
        """One of a service account of the manifests."""
        spec = {"expirationSeconds": TOKEN_SECONDS} | ({"audiences": [audience]} if audience else {})
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = self.ask("POST", self.of_namespace(f"serviceaccounts/{account}/token"), request)
        return str(answer["status"]["token"])

    def pods(self, **labels: str) -> list[dict[str, Any]]:
        """Those that have these labels, oldest first."""
        chosen = ",".join(f"{key.replace('_', '-')}={value}" for key, value in labels.items())
        found: list[dict[str, Any]] = self.ask("GET", self.of_namespace("pods"), labelSelector=chosen)["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def list_manifests(file: Path) -> list[dict[str, Any]]:
    """Those of a file, in its order."""
    return list(yaml.safe_load_all(file.read_text()))


@contextmanager
def control_plane(folder: Path) -> Iterator[ControlPlane]:
    """The API server, with the repository's own manifests; it ends with the block."""
    etcd_port, peers, port = free_ports(3)
    administrator = secrets.token_hex(16)
    key = folder / "accounts.key"
    (folder / "audit.yaml").write_text(AUDIT)
    (folder / "tokens.csv").write_text(f'{administrator},administrator,1,"system:masters"\n')
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    store = f"http://127.0.0.1:{etcd_port}"
    started: list[subprocess.Popen[bytes]] = []
    session = requests.Session()
    session.trust_env = False  # no proxy knows this machine
    session.headers["Authorization"] = f"Bearer {administrator}"
    plane = ControlPlane(f"https://127.0.0.1:{port}", folder, session)
    session.verify = str(plane.certificate)
    servers: Mapping[str, list[str]] = {
        "etcd": [
            str(program(ETCD)),
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={store}",
            f"--advertise-client-urls={store}",
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ],
        "kube-apiserver": [
            str(program(API_SERVER)),
            f"--etcd-servers={store}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={port}",
            f"--cert-dir={plane.certificate.parent}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--audit-policy-file={folder / 'audit.yaml'}",
            f"--audit-log-path={plane.audit}",
        ],
    }
    try:
        for name, command in servers.items():
            with (folder / f"{name}.log").open("ab") as log:
                started.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=folder))
        _wait(plane, started)
        for name in ("namespace", "rights", "network"):
            plane.apply(MANIFESTS / f"{name}.yaml")
        yield plane
    finally:
        for server in reversed(started):
            server.terminate()
            server.wait(30)


def _wait(plane: ControlPlane, started: list[subprocess.Popen[bytes]]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            if plane.session.get(f"{plane.url}/readyz", timeout=5).ok:
                return
        except OSError:
            pass  # it does not listen yet, or has no certificate yet
        ended = any(server.poll() is not None for server in started)
        if ended or time.monotonic() > deadline:
            logs = "\n".join(log.read_text()[-3000:] for log in plane.folder.glob("*.log"))
            raise TimeoutError(f"the API server did not start\n{logs}")
        time.sleep(0.2)
