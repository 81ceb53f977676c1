"""The jobs in cluster mode: each driver is a pod, which asks the API server for its executors with its own account."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from .control_plane import MANIFESTS, NAMESPACE, list_manifests
from .pods import CONFIGURATION, ROOT, Cluster

SMALL = ("train.epochs=2", "train.batch_size=16", "tracking.gate.minimum=0.2")
ACCOUNTS = ("sparkdl-submit", "sparkdl-driver", "sparkdl-executor")


@pytest.fixture(scope="module")
def told(cluster: Cluster, images: Path) -> dict[str, str]:
    """What each job prints in its pod."""
    raw = images / "output" / "raw" / "fashion-mnist"
    places = {"prepare.output": "dataset", "train.run_dir": "runs", "score.output": "predictions"}
    chosen = [f"{key}={images}/pods/{name}" for key, name in places.items()]
    chosen.append(f"prepare.source.path={raw}")
    chosen += [f"tracking.uri=sqlite:///{images}/pods/mlflow.db", f"tracking.spool={images}/pods/spool"]
    (images / "pods").mkdir()
    found = {}
    for job in ("prepare", "train", "score"):
        before = {pod["metadata"]["name"] for pod in cluster.plane.pods(spark_role="driver")}
        done = cluster.submit(
            ROOT / "jobs" / f"{job}.py", str(CONFIGURATION), *SMALL, *chosen, mode="cluster", check=False
        )
        pods = {pod["metadata"]["name"]: pod for pod in cluster.plane.pods(spark_role="driver")}
        names = pods.keys() - before
        assert len(names) == 1, done.stdout[-4000:] + done.stderr[-4000:]
        (name,) = names
        found[job] = cluster.kubelet.log(name)
        assert pods[name]["status"]["phase"] == "Succeeded", found[job][-8000:] + done.stderr[-2000:]
    return found


def test_images_become_predictions(told: dict[str, str]) -> None:
    assert re.search(r"^rows +\d+ train, 40 test, \d+ validation$", told["prepare"], re.MULTILINE)
    assert "alias 'candidate' points to version 1" in told["train"]
    assert re.search(r"^rows +40$", told["score"], re.MULTILINE), told["score"]


def requests_of(cluster: Cluster, account: str) -> Iterator[tuple[str, str, int]]:
    """Verb, resource and status of what an account has asked for."""
    for line in cluster.plane.audit.read_text().splitlines():
        entry = json.loads(line)
        if entry["user"].get("username") == f"system:serviceaccount:{NAMESPACE}:{account}" and "objectRef" in entry:
            yield entry["verb"], entry["objectRef"]["resource"], entry.get("responseStatus", {}).get("code", 0)


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("account", ACCOUNTS)
def test_an_account_is_refused_nothing_that_a_job_asks_for(account: str, cluster: Cluster) -> None:
    used = set(requests_of(cluster, account))
    assert {(verb, resource) for verb, resource, code in used if code == 403} == set()
    roles = [each for each in list_manifests(MANIFESTS / "rights.yaml") if each["kind"] == "Role"]
    granted = {
        (verb, resource)
        for role in roles
        if role["metadata"]["name"] == account
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {(verb, resource) for verb, resource, _ in used} <= granted
