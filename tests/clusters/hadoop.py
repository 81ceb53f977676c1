"""HDFS and YARN on this machine, each daemon as a process of its own, and what is submitted to them."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.standalone import MARK, SPARK_HOME, StandaloneCluster
from sparkdl.java import ensure_java

from .configuration import NODES, PAIR, Configuration
from .jars import hadoop_jars

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "conf" / "fashion_mnist.yaml"
PROPERTIES = ("--properties-file", str(ROOT / "conf" / "spark-defaults.conf"))
PROGRAMS = Path(__file__).parent / "programs"
START_SECONDS = 240
DAEMONS = {
    "name node": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "data node": "org.apache.hadoop.hdfs.server.datanode.DataNode",
    "resource manager": "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "node manager": "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
}
ROLES = DAEMONS | {
    "executor": "org.apache.spark.executor.YarnCoarseGrainedExecutorBackend",
    "master": "org.apache.spark.deploy.yarn.ExecutorLauncher",
    "python": ".daemon",
}
"""What the command lines of the processes contain; the application's master is another one in cluster mode."""
TOOLS = {
    "haadmin": "org.apache.hadoop.hdfs.tools.DFSHAAdmin",
    "logs": "org.apache.hadoop.yarn.client.cli.LogsCLI",
    "rmadmin": "org.apache.hadoop.yarn.client.cli.RMAdminCLI",
}
SHORT_LIVED = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Many of them start, and none has much to do: they keep two cores busy for half as long."""
JAVA = (
    "--add-opens=java.base/java.lang=ALL-UNNAMED",  # for Guice, in the resource manager
    *SHORT_LIVED,
    "-Dlog4j2.level=WARN",
)
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy knows this machine
SPARK = {
    "spark.driver.memory": "1g",
    "spark.driver.memoryOverhead": "1600m",  # in cluster mode
    "spark.executor.memory": "600m",
    # A Python process with PyTorch takes 0.6 GB before it has a network, and here it is forked from another.
    "spark.executor.memoryOverhead": "1600m",
    "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",  # on each host already: nothing to upload
    "spark.yarn.am.memory": "512m",
    "spark.executor.extraJavaOptions": " ".join(SHORT_LIVED),
    "spark.yarn.am.extraJavaOptions": " ".join(SHORT_LIVED),
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}
OVER_LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


class Hadoop(StandaloneCluster):
    """The running daemons. Its environment is that of ``spark-submit``."""

    configuration: Configuration
    java: tuple[str, ...]

    def start_daemon(self, name: str, *arguments: str, node: int = 0) -> subprocess.Popen[bytes]:
        """Start one of the :data:`DAEMONS`; ``node`` says which node manager it is, or which name node of a pair."""
        settings = self.configuration.nodes[node] if name == "node manager" else self.configuration.client
        log = self.configuration.folder / f"{name.replace(' ', '-')}{node}.log"
        with log.open("ab") as output:
            command = [*self._java(settings), "-Xmx512m", f"-Dsparkdl.node={node}", DAEMONS[name]]
            if name == "name node" and self.configuration.paired:
                command.append(f"-Ddfs.ha.namenode.id={PAIR[node]}")  # their addresses do not tell them apart
            command += arguments
            return subprocess.Popen(command, env=self._without_archive(), stdout=output, stderr=output)

    def start_name_nodes(self) -> None:
        """Make a file system, and start its name node, or a pair, of which the first one is then in charge."""
        settings = self.configuration
        assert self.start_daemon("name node", "-format", "-nonInteractive").wait(START_SECONDS) == 0
        if settings.paired:
            shutil.copytree(*(settings.folder / name for name in PAIR))  # both begin with the same
        for node in range(len(settings.pages)):
            self.start_daemon("name node", node=node)
        if settings.paired:
            self.put_in_charge(0)

    def put_in_charge(self, node: int) -> None:
        """Let one of a pair of name nodes take over, as an operator does when the other one has ended."""
        until(lambda: self._name_node("NameNodeStatus", "State", node) == "standby", "a name node did not start")
        self.tool("haadmin", "-transitionToActive", "--forceactive", PAIR[node])

    def tool(self, name: str, *arguments: str) -> str:
        """What one of Hadoop's own :data:`TOOLS` prints."""
        command = [*self._java(self.configuration.client), TOOLS[name], *arguments]
        done = subprocess.run(
            command, env=self._without_archive(), capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    def _without_archive(self) -> dict[str, str]:
        """The archive of classes (``tests/class_archive.py``) is for Spark's class path alone."""
        return {key: value for key, value in self.environment.items() if key != "JDK_JAVA_OPTIONS"}

    def _java(self, settings: Path) -> list[str]:
        path = os.pathsep.join([str(settings), *self.java, str(SPARK_HOME / "jars" / "*")])
        return ["java", *JAVA, "-cp", path]

    def processes(self) -> list[psutil.Process]:
        """Those that carry the mark, and those of containers, which YARN gives an environment of its own."""
        return [*super().processes(), *(process for host in NODES for process in self.containers(host))]

    def find(self, role: str) -> list[psutil.Process]:
        """The processes of one of the :data:`ROLES`, oldest first."""
        found = []
        for process in self.processes():
            with suppress(psutil.Error):
                if any(part.endswith(ROLES[role]) for part in process.cmdline()):
                    found.append(process)
        return sorted(found, key=lambda process: process.create_time())

    def node_managers(self, node: int) -> list[psutil.Process]:
        """The process of a node manager, if it runs."""
        return [each for each in self.find("node manager") if f"-Dsparkdl.node={node}" in each.cmdline()]

    def containers(self, host: str) -> list[psutil.Process]:
        """The processes of all containers on one of the :data:`NODES`: they run in folders of its node manager."""
        folder = str(self.configuration.folder / host / "local")
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.cwd().startswith(folder):
                    found.append(process)
        return found

    def ask(self, what: str) -> Any:
        """An answer of the resource manager, such as that to ``nodes`` or ``apps``."""
        with DIRECTLY.open(f"http://127.0.0.1:{self.configuration.page}/ws/v1/cluster/{what}", timeout=5) as answer:
            return json.load(answer)

    def nodes(self, state: str = "RUNNING") -> list[str]:
        """The hosts of the node managers that are in a state."""
        with suppress(OSError):
            found = self.ask(f"nodes?states={state}")["nodes"]
            listed = found.get("node", []) if isinstance(found, dict) else found or []
            return [each["nodeHTTPAddress"].partition(":")[0] for each in listed]
        return []

    def wait_for_nodes(self) -> None:
        """Return when both node managers can be given containers."""
        until(lambda: len(self.nodes()) == len(NODES), "the node managers have not registered")

    def safe(self, node: int = 0) -> bool:
        """Whether the name node, or one of the pair, refuses changes, or does not answer."""
        return self._name_node("NameNodeInfo", "Safemode", node) != ""

    def _name_node(self, bean: str, key: str, node: int) -> object:
        """What a name node tells of itself; None if it does not answer, or does not know yet."""
        url = f"http://127.0.0.1:{self.configuration.pages[node]}/jmx?qry=Hadoop:service=NameNode,name={bean}"
        with suppress(OSError), DIRECTLY.open(url, timeout=5) as answer:
            return next((found.get(key) for found in json.load(answer)["beans"]), None)
        return None

    def command(self, script: str | Path, *args: str, options: Sequence[str] = (), mode: str = "client") -> list[str]:
        """The command line that submits a script to YARN."""
        settings = SPARK | (OVER_LOOPBACK if mode == "client" else {})
        submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", mode]
        submit += ["--num-executors", "2"]
        submit += [part for item in settings.items() for part in ("--conf", "=".join(item))]
        return [*submit, *options, str(script), *args]

    def submit(
        self,
        script: str | Path,
        *args: str,
        options: Sequence[str] = (),
        mode: str = "client",
        check: bool = True,
        cwd: Path = ROOT,
        variables: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a script through spark-submit; with ``check``, its failure is the test's."""
        done = subprocess.run(
            self.command(script, *args, options=options, mode=mode),
            env=self.environment | (variables or {}),
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if check and done.returncode:
            pytest.fail(f"{script} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}")
        return done


def until(true: Callable[[], object], otherwise: str, *, seconds: float = START_SECONDS) -> None:
    """Wait for something, as long as daemons may take to start."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.2)


@contextmanager
def running_hadoop(folder: Path, *, pair: bool = False) -> Iterator[Hadoop]:
    """HDFS, with one name node or a ``pair``, and YARN with two nodes. Afterwards none of their processes is left."""
    ensure_java()
    configuration = Configuration(folder, pair=pair)
    environment = os.environ | {
        "SPARK_HOME": str(SPARK_HOME),
        "HADOOP_CONF_DIR": str(configuration.client),
        "SPARK_LOCAL_DIRS": str(folder),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(
            [*map(str, (ROOT, ROOT / "jobs", PROGRAMS)), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
        MARK: secrets.token_hex(8),
    }
    hadoop = Hadoop("yarn", environment)
    object.__setattr__(hadoop, "configuration", configuration)
    object.__setattr__(hadoop, "java", tuple(map(str, hadoop_jars())))
    try:
        hadoop.start_name_nodes()
        hadoop.start_daemon("data node")
        hadoop.start_daemon("resource manager")
        for node in range(len(NODES)):
            hadoop.start_daemon("node manager", node=node)
        until(lambda: not hadoop.safe(), "the name node did not start")
        hadoop.wait_for_nodes()
        yield hadoop
    finally:
        everyone = hadoop.processes()
        for process in everyone:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(everyone, timeout=10)
