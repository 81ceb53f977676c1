"""A Spark standalone cluster as real processes on this machine, and how to find each of them, to hurt it."""

import json
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from benchmarks.ports import free_ports
from sparkdl.java import ensure_java

__all__ = ["ROLES", "StandaloneCluster", "numbered_threads", "standalone_cluster"]

DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy knows this machine
LOOPBACK = "127.0.0.1"
SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 180
LOG = "daemons.log"  # of master and workers
MARK = "SPARKDL_CLUSTER"  # in the environment of every process of a cluster, which children inherit
ROLES = {
    "master": "org.apache.spark.deploy.master.Master",
    "worker": "org.apache.spark.deploy.worker.Worker",
    "executor": "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    "driver": "org.apache.spark.deploy.SparkSubmit",
    "connect server": "org.apache.spark.sql.connect.service.SparkConnectServer",
    "python": ".daemon",  # Spark's own, or ours
}
"""What the command lines of a cluster's processes contain; ``python`` are the daemons and the workers they fork."""


@dataclass(frozen=True)
class StandaloneCluster:
    """A Spark master and its workers, by default on loopback."""

    master_url: str
    environment: dict[str, str]
    host: str = LOOPBACK

    def command(self, script: str | Path, *args: str, options: Sequence[str] = ()) -> list[str]:
        """The command line that submits a script; ``options`` are spark-submit's."""
        settings = {"spark.driver.memory": "1g", "spark.executor.memory": "600m", "spark.ui.enabled": "false"}
        settings |= {"spark.driver.host": self.host, "spark.driver.bindAddress": self.host}
        submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.master_url]
        submit += [part for item in settings.items() for part in ("--conf", "=".join(item))]
        return [*submit, *options, str(script), *args]

    def start(self, script: str | Path, *args: str, log: Path, options: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Submit a script and return at once; its output goes to ``log``."""
        with log.open("ab") as output:
            return subprocess.Popen(
                self.command(script, *args, options=options), env=self.environment, stdout=output, stderr=output
            )

    @contextmanager
    def connect_server(self, settings: Mapping[str, str] | None = None) -> Iterator[int]:
        """The port of a Spark Connect server over the cluster, for as long as the block lasts.

        Raises TimeoutError with what it said if it does not start.
        """
        (port,), log = free_ports(1, self.host), Path(self.environment["SPARK_LOCAL_DIRS"]) / "connect.log"
        settings = {
            "spark.connect.grpc.binding.address": self.host,
            "spark.connect.grpc.binding.port": str(port),
            "spark.python.daemon.module": "sparkdl.daemon",
            "spark.sql.shuffle.partitions": "2",
            **(settings or {}),
        }
        options = [part for item in settings.items() for part in ("--conf", "=".join(item))]
        command = self.command("spark-internal", options=["--class", ROLES["connect server"], *options])
        # Spark gives this server the memory of its daemons, whatever its settings say.
        environment = self.environment | {"SPARK_DAEMON_MEMORY": "1g"}
        with log.open("wb") as output:
            server = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection((self.host, port), timeout=1).close()
                break
            except OSError:
                if server.poll() is not None or time.monotonic() > deadline:
                    raise TimeoutError(f"the server did not start\n{log.read_text()[-4000:]}") from None
                time.sleep(0.2)
        try:
            yield port
        finally:
            server.terminate()
            server.wait(30)

    def start_worker(self, cores: int, *, host: str | None = None) -> None:
        """Add a worker to the cluster, and return at once."""
        folder, host = Path(self.environment["SPARK_LOCAL_DIRS"]), host or self.host
        options = ["--host", host, "--cores", str(cores), "--memory", "1g", "--webui-port", "0"]
        options += ["--work-dir", str(folder / "work"), self.master_url]
        _start(self.environment | {"SPARK_LOCAL_IP": host}, folder / LOG, ROLES["worker"], *options)

    def processes(self) -> list[psutil.Process]:
        """Every process of the cluster and of what was submitted to it, also those that have lost their parents."""
        return [process for process in psutil.process_iter() if _environment(process).get(MARK) == self.mark]

    def find(self, role: str) -> list[psutil.Process]:
        """The processes of one of the :data:`ROLES`, oldest first."""
        found = [process for process in self.processes() if any(ROLES[role] in part for part in _command(process))]
        return sorted(found, key=lambda process: process.create_time())

    def tasks(self, role: str) -> dict[int, psutil.Process]:
        """The Python processes that are a rank, a worker or a server at the moment, by number.

        One of their threads is named after it.
        """
        return {number: process for process in self.find("python") for number in numbered_threads(process, role)}

    def ranks(self) -> dict[int, psutil.Process]:
        """The Python processes that are a rank at the moment."""
        return self.tasks("rank")

    @property
    def mark(self) -> str:
        """What marks the processes of this cluster."""
        return self.environment[MARK]


@contextmanager
def standalone_cluster(
    folder: Path, *, cores: Sequence[int] = (1, 1), pythonpath: str = "", host: str = LOOPBACK
) -> Iterator[StandaloneCluster]:
    """A master, and a worker for each entry of ``cores``. Afterwards none of its processes is left. Runs on the driver.

    ``folder`` takes logs and the workers' files.
    """
    ensure_java()
    environment = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": host,
        "SPARK_LOCAL_DIRS": str(folder),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": pythonpath,
        MARK: secrets.token_hex(8),
    }
    port, page = free_ports(2, host)
    cluster = StandaloneCluster(f"spark://{host}:{port}", environment, host)
    log = folder / LOG
    try:
        _start(environment, log, ROLES["master"], "--host", host, "--port", str(port), "--webui-port", str(page))
        for count in cores:
            cluster.start_worker(count)
        _wait_for_workers(f"http://{host}:{page}/json/", len(cores), log)
        yield cluster
    finally:
        everyone = cluster.processes()
        for process in everyone:
            with suppress(psutil.NoSuchProcess):  # it has ended by itself meanwhile
                process.resume()  # one that is stopped does not hear that it shall end
                process.terminate()
        for process in psutil.wait_procs(everyone, timeout=10)[1]:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _start(environment: dict[str, str], log: Path, name: str, *options: str) -> None:
    with log.open("a") as output:
        spark_class = str(SPARK_HOME / "bin" / "spark-class")
        subprocess.Popen([spark_class, name, *options], env=environment, stdout=output, stderr=output)


def _wait_for_workers(page: str, count: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            with DIRECTLY.open(page, timeout=5) as answer:
                if json.load(answer)["aliveworkers"] == count:
                    return
        except OSError:
            pass  # the master is not up yet
        time.sleep(0.2)
    raise TimeoutError(f"the standalone cluster did not start in {START_SECONDS} s\n{log.read_text()[-4000:]}")


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}  # it has ended meanwhile, or belongs to somebody else


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def numbered_threads(process: psutil.Process, role: str = "rank") -> dict[int, Path]:
    """Threads such as ``rank 0``, which a rank has as long as it lasts, under ``/proc``; the process may go on."""
    found = {}
    for path in Path(f"/proc/{process.pid}/task").glob("*/comm"):
        with suppress(OSError):  # it has ended meanwhile
            if (name := path.read_text().strip()).startswith(f"{role} "):
                found[int(name.removeprefix(f"{role} "))] = path
    return found
