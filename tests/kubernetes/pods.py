"""Jobs for Kubernetes as they are submitted, with the repository's manifests; this machine's files are the image."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.standalone import SPARK_HOME
from sparkdl.java import ensure_java

from ..clusters.trainings import SETTINGS, Training
from .control_plane import MANIFESTS, NAMESPACE, ControlPlane, control_plane
from .kubelet import Container, Kubelet

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "conf" / "fashion_mnist.yaml"
PROPERTIES = ("--properties-file", str(ROOT / "conf" / "spark-defaults.conf"))
PYTHONPATH = os.pathsep.join(map(str, (ROOT, ROOT / "jobs", ROOT / "tests" / "clusters" / "programs")))
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
JOB_SECONDS = 420


@dataclass(frozen=True)
class Cluster:
    """The API server, and what runs its pods."""

    plane: ControlPlane
    kubelet: Kubelet
    environment: Mapping[str, str]

    def command(
        self,
        script: Path,
        *arguments: str,
        options: Mapping[str, str] | None = None,
        mode: str = "client",
        account: str | None = None,
        server: str | None = None,
    ) -> list[str]:
        """What a user types, as the account of the manifests or another one, for this API server or another one."""
        server = server or self.plane.url
        account = account or ("sparkdl-driver" if mode == "client" else "sparkdl-submit")
        who = "spark.kubernetes.authenticate" + ("" if mode == "client" else ".submission")
        settings = {
            "spark.kubernetes.namespace": NAMESPACE,
            "spark.kubernetes.container.image": "registry.example/sparkdl:latest",
            "spark.kubernetes.driver.podTemplateFile": str(MANIFESTS / "driver-pod.yaml"),
            "spark.kubernetes.executor.podTemplateFile": str(MANIFESTS / "executor-pod.yaml"),
            "spark.kubernetes.authenticate.driver.serviceAccountName": "sparkdl-driver",
            "spark.kubernetes.authenticate.executor.serviceAccountName": "sparkdl-executor",
            f"{who}.oauthToken": self.plane.token(account),
            f"{who}.caCertFile": str(self.plane.certificate),
            "spark.kubernetes.driver.master": server,  # there is no DNS that knows kubernetes.default.svc
            "spark.kubernetes.submission.waitAppCompletion": "true",
            "spark.executor.instances": "2",
            "spark.driver.memory": "1g",
            "spark.driver.memoryOverhead": "1600m",
            "spark.executor.memory": "600m",
            "spark.executor.memoryOverhead": "1600m",
            "spark.executor.extraJavaOptions": SHORT_LIVED,
            "spark.kubernetes.executor.terminationGracePeriodSeconds": "120",
            "spark.pyspark.python": sys.executable,
            "spark.pyspark.driver.python": sys.executable,
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        }
        if mode == "client":
            settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        settings |= options or {}
        submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", f"k8s://{server}"]
        submit += ["--deploy-mode", mode, *PROPERTIES]
        submit += [part for item in settings.items() for part in ("--conf", "=".join(item))]
        return [*submit, str(script) if mode == "client" else f"local://{script}", *arguments]

    def submit(
        self, script: Path, *arguments: str, check: bool = True, cwd: Path = ROOT, **how: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a script through spark-submit; with ``check``, its failure is the test's."""
        done = subprocess.run(
            self.command(script, *arguments, **how),
            env=self.environment,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=JOB_SECONDS,
            check=False,
        )
        if check and done.returncode:
            pytest.fail(f"{script} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
        return done

    def executors(self) -> dict[str, Container]:
        """Those that run, by the names of their pods, oldest first."""
        names = [pod["metadata"]["name"] for pod in self.plane.pods(spark_role="executor")]
        found = {name: self.kubelet.containers[name] for name in names if name in self.kubelet.containers}
        return {name: each for name, each in found.items() if each.process.poll() is None}


@contextmanager
def kubernetes(folder: Path) -> Iterator[Cluster]:
    """The cluster, which ends with the block, and all processes of its pods with it."""
    ensure_java()
    java = os.environ.get("JAVA_HOME") or str(Path(shutil.which("java") or "").resolve().parents[1])
    image = {
        "SPARK_HOME": str(SPARK_HOME),
        "JAVA_HOME": java,
        "PATH": f"{java}/bin:/usr/bin:/bin",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": PYTHONPATH,
        "LANG": "C.UTF-8",
        "HOME": str(folder),
    }
    environment = {key: value for key, value in os.environ.items() if key != "PYSPARK_PYTHON"}
    environment |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_DIRS": str(folder / "local"), "PYTHONPATH": PYTHONPATH}
    for name in ("server", "pods", "local"):  # each pod has a volume of its own at the last
        (folder / name).mkdir()
    with control_plane(folder / "server") as plane, Kubelet(plane, folder / "pods", image) as kubelet:
        yield Cluster(plane, kubelet, environment)


@contextmanager
def training_in_pods(cluster: Cluster, dataset: Path, folder: Path, **how: Any) -> Iterator[Training]:
    """A training with two ranks in two pods, slow enough for something to happen to them; it ends with the block."""
    runs = folder / "runs"
    tree = {
        "train": SETTINGS | {"dataset": str(dataset), "run_dir": str(runs)},
        "cluster": {"num_ranks": 2, "slot_timeout": 120},
        "tracking": {"uri": f"sqlite:///{folder}/mlflow.db", "spool": f"{folder}/spool"},
    }
    (folder / "slow.yaml").write_text(yaml.safe_dump(tree))
    log = folder / "driver.log"
    command = cluster.command(ROOT / "jobs" / "train.py", str(folder / "slow.yaml"), **how)
    with (
        log.open("ab") as output,
        subprocess.Popen(command, env=cluster.environment, stdout=output, stderr=output) as started,
    ):
        try:
            yield Training(str(runs), log, started)
        finally:
            started.kill()
