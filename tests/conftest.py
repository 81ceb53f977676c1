"""What tests share: an embedded Spark, and a real standalone cluster with a process for everything."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from json import load
from pathlib import Path

import cloudpickle
import psutil
import pyspark
import pytest
from pyspark import cloudpickle as spark_cloudpickle
from pyspark.sql import SparkSession

from sparkdl.cluster.session import ensure_java, get_session
from sparkdl.settings import Cluster

LOOPBACK = "127.0.0.1"
SPARK_HOME = Path(pyspark.__file__).parent
ROOT = Path(__file__).parent.parent
START_SECONDS = 60


def pytest_collection_finish(session: pytest.Session) -> None:
    """Ranks and tasks cannot import test modules, so what these define travels by value."""
    for module in {item.module for item in session.items if isinstance(item, pytest.Function)}:
        cloudpickle.register_pickle_by_value(module)
        spark_cloudpickle.register_pickle_by_value(module)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The embedded Spark with two slots."""
    options = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": 2}
    session = get_session(Cluster(embedded_slots=2, options=options))
    yield session
    session.stop()


@dataclass(frozen=True)
class Standalone:
    """A Spark master and two workers with one core each, as processes of their own on loopback."""

    master_url: str
    environment: dict[str, str]

    def submit(
        self, script: str | Path, *args: str, timeout: float = 240, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a script through spark-submit; with ``check``, its failure is the test's."""
        options = {"spark.driver.memory": "1g", "spark.executor.memory": "600m", "spark.ui.enabled": "false"}
        options |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master_url]
        command += ["--properties-file", str(ROOT / "conf" / "spark-defaults.conf")]
        command += [part for key, value in options.items() for part in ("--conf", f"{key}={value}")]
        done = subprocess.run(
            [*command, str(script), *args],
            env=self.environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if check and done.returncode:
            pytest.fail(f"{script} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
        return done


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A real cluster. Afterwards none of its processes is left."""
    ensure_java()
    folder = tmp_path_factory.mktemp("standalone")
    environment = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    port, page = _free_port(), _free_port()
    master_url = f"spark://{LOOPBACK}:{port}"
    master = ["master.Master", "--host", LOOPBACK, "--port", str(port), "--webui-port", str(page)]
    worker = ["worker.Worker", "--host", LOOPBACK, "--cores", "1", "--memory", "1g", "--webui-port", "0"]
    worker += ["--work-dir", str(folder / "work"), master_url]
    daemons = []
    try:
        for command in (master, worker, worker):
            with (folder / "daemons.log").open("a") as log:
                spark_class = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{command[0]}"]
                daemon = subprocess.Popen([*spark_class, *command[1:]], env=environment, stdout=log, stderr=log)
            daemons.append(psutil.Process(daemon.pid))
        _wait_for_workers(f"http://{LOOPBACK}:{page}/json/", folder / "daemons.log")
        yield Standalone(master_url, environment)
    finally:
        end_processes(daemons)


def end_processes(processes: list[psutil.Process]) -> None:
    """End processes and all their descendants; those that do not listen are killed."""
    everyone = [*processes, *(child for process in processes for child in process.children(recursive=True))]
    for process in processes:
        process.terminate()
    for process in psutil.wait_procs(everyone, timeout=10)[1]:
        process.kill()


def _free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as server:
        return int(server.getsockname()[1])


def _wait_for_workers(page: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(page, timeout=5) as answer:
                if load(answer)["aliveworkers"] == 2:
                    return
        except OSError:
            pass  # the master is not up yet
        time.sleep(0.2)
    pytest.fail(f"the standalone cluster did not start in {START_SECONDS} s\n{log.read_text()[-4000:]}")
