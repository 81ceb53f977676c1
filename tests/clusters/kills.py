"""What happens to the parts of YARN and HDFS while they run a training."""

import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psutil

from .configuration import NODES
from .hadoop import Hadoop, until


def kill_container(hadoop: Hadoop) -> None:
    """The JVM of an executor ends, and its Python with it; YARN gives the application another container."""
    random.choice(hadoop.find("executor")).kill()


def kill_node(hadoop: Hadoop) -> None:
    """A host goes, with its node manager and all containers, one of which may be the application's master."""
    node = random.randrange(len(NODES))
    hadoop.node_managers(node)[0].kill()
    for process in hadoop.containers(NODES[node]):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def kill_node_manager(hadoop: Hadoop) -> None:
    """A node manager goes, and its containers stay: once it has expired, YARN counts them as lost."""
    hadoop.node_managers(random.randrange(len(NODES)))[0].kill()


def decommission_node(hadoop: Hadoop) -> None:
    """An operator excludes a node with an executor; the resource manager ends its containers."""
    _exclude_host_of_executor(hadoop)
    hadoop.tool("rmadmin", "-refreshNodes")


def give_notice(hadoop: Hadoop, seconds: int) -> float:
    """The same after so many seconds; return when the resource manager heard of it, by ``time.monotonic``."""
    _exclude_host_of_executor(hadoop)
    with ThreadPoolExecutor() as thread:  # the tool takes a while to end
        told = thread.submit(hadoop.tool, "rmadmin", "-refreshNodes", "-g", str(seconds), "-server")
        until(lambda: bool(hadoop.nodes("DECOMMISSIONING")), "no node is being decommissioned")
        noticed = time.monotonic()
        told.result()
    return noticed


def kill_master(hadoop: Hadoop) -> None:
    """The application's master ends; YARN ends all containers, starts another master, and that asks for others."""
    hadoop.find("master")[-1].kill()


def kill_data_node(hadoop: Hadoop) -> None:
    """The only data node goes, and comes back: what is read and written waits."""
    hadoop.find("data node")[0].kill()
    hadoop.start_daemon("data node")


KINDS: dict[str, Callable[[Hadoop], None]] = {
    "container killed": kill_container,
    "node killed": kill_node,
    "node manager killed": kill_node_manager,
    "node decommissioned": decommission_node,
    "master killed": kill_master,
    "data node killed": kill_data_node,
}


def _exclude_host_of_executor(hadoop: Hadoop) -> None:
    hosts = [host for host in NODES if any(map(hadoop.find("executor").__contains__, hadoop.containers(host)))]
    hadoop.configuration.exclude.write_text(hosts[0])


def mend(hadoop: Hadoop) -> None:
    """Start what is not there any more, and return when all nodes can be given containers."""
    if hadoop.configuration.exclude.read_text():
        hadoop.configuration.exclude.write_text("")
        hadoop.tool("rmadmin", "-refreshNodes")
    if not hadoop.find("data node"):
        hadoop.start_daemon("data node")
    until(lambda: _whole(hadoop), "the node managers have not come back")


def _whole(hadoop: Hadoop) -> bool:
    """Whether all nodes can be given containers; a node manager that has ended meanwhile is started again."""
    for node in range(len(NODES)):
        if not hadoop.node_managers(node):
            hadoop.start_daemon("node manager", node=node)
    return sorted(hadoop.nodes()) == sorted(NODES)
