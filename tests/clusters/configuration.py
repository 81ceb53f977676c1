"""Hadoop's files of settings for one machine: a name node, a data node, a resource manager and node managers."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.ports import free_ports

MASTER = "127.0.0.1"
NODES = ("127.0.0.2", "127.0.0.3")
"""Each node manager has an address of its own, the host of its containers, by which a node is excluded."""
NODE_MEMORY = 8192  # MiB, with room for both executors and the application's master: so that one may take all over
EXPIRY_SECONDS = 20
"""After which the resource manager gives up a node that it does not hear of; Hadoop's default is ten minutes."""
PAIR = ("first", "second")
"""The two name nodes of a file system with high availability, ``hdfs://pair``."""
QUEUES = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
}


class Configuration:
    """The files, in a folder for each daemon; those in ``folder / "client"`` are the clients' and the masters'.

    ``pages`` are the ports at which name nodes tell of themselves: of one, or of a ``pair``.
    """

    def __init__(self, folder: Path, *, pair: bool = False) -> None:
        self.folder = folder
        count = len(PAIR) if pair else 1
        name_nodes, self.pages = free_ports(count), free_ports(count)
        resource_manager, self.page, *ports = free_ports(8)
        self.paired = pair
        self.hdfs = "hdfs://pair" if pair else f"hdfs://{MASTER}:{name_nodes[0]}"
        self.exclude = folder / "excluded"
        self.exclude.write_text("")
        data, data_http, data_ipc, scheduler, tracker, admin = ports
        files = {
            "core-site.xml": {"fs.defaultFS": self.hdfs, "hadoop.tmp.dir": str(folder / "tmp")},
            "hdfs-site.xml": {
                "dfs.replication": "1",
                **(_pair(folder, name_nodes, self.pages) if pair else _alone(folder, self.pages[0])),
                "dfs.datanode.data.dir": str(folder / "blocks"),
                "dfs.datanode.address": f"{MASTER}:{data}",
                "dfs.datanode.http.address": f"{MASTER}:{data_http}",
                "dfs.datanode.ipc.address": f"{MASTER}:{data_ipc}",
            },
            "yarn-site.xml": {
                "yarn.resourcemanager.address": f"{MASTER}:{resource_manager}",
                "yarn.resourcemanager.scheduler.address": f"{MASTER}:{scheduler}",
                "yarn.resourcemanager.resource-tracker.address": f"{MASTER}:{tracker}",
                "yarn.resourcemanager.admin.address": f"{MASTER}:{admin}",
                "yarn.resourcemanager.webapp.address": f"{MASTER}:{self.page}",
                "yarn.resourcemanager.nodes.exclude-path": str(self.exclude),
                "yarn.resourcemanager.am.max-attempts": "50",  # Hadoop's 2 would be an application's last one
                "yarn.scheduler.minimum-allocation-mb": "128",
                "yarn.scheduler.maximum-allocation-mb": "4096",
                "yarn.nm.liveness-monitor.expiry-interval-ms": str(1000 * EXPIRY_SECONDS),
                "yarn.nodemanager.resource.memory-mb": str(NODE_MEMORY),
                "yarn.nodemanager.resource.cpu-vcores": "8",
                "yarn.nodemanager.pmem-check-enabled": "true",
                "yarn.nodemanager.resource.memory.enforced": "false",  # or the check is left to cgroups, used or not
                "yarn.nodemanager.vmem-check-enabled": "false",  # address space is not memory, and PyTorch maps a lot
                "yarn.nodemanager.resource-monitor.interval-ms": "500",
                "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
                "yarn.nodemanager.delete.debug-delay-sec": "0",
                "yarn.log-aggregation-enable": "true",
                "yarn.nodemanager.remote-app-log-dir": "/logs",
            },
            "capacity-scheduler.xml": QUEUES,
        }
        self.client = self._write("client", files)
        self.nodes = [self._write(f"node-{host}", files | _node(folder, host, files)) for host in NODES]

    def _write(self, name: str, files: Mapping[str, Mapping[str, str]]) -> Path:
        folder = self.folder / name
        folder.mkdir()
        for file, settings in files.items():
            properties = "".join(
                f"<property><name>{key}</name><value>{value}</value></property>\n" for key, value in settings.items()
            )
            (folder / file).write_text(f"<configuration>\n{properties}</configuration>\n")
        return folder


def _alone(folder: Path, page: int) -> dict[str, str]:
    return {"dfs.namenode.name.dir": str(folder / "names"), "dfs.namenode.http-address": f"{MASTER}:{page}"}


def _pair(folder: Path, ports: Sequence[int], pages: Sequence[int]) -> dict[str, str]:
    """Name nodes that share their log of edits in a folder; an operator says which one is in charge."""
    provider = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
    settings = {
        "dfs.nameservices": "pair",
        "dfs.ha.namenodes.pair": ",".join(PAIR),
        "dfs.namenode.shared.edits.dir": f"file://{folder / 'edits'}",
        "dfs.client.failover.proxy.provider.pair": provider,
    }
    for name, port, page in zip(PAIR, ports, pages, strict=True):
        settings |= {
            f"dfs.namenode.rpc-address.pair.{name}": f"{MASTER}:{port}",
            f"dfs.namenode.http-address.pair.{name}": f"{MASTER}:{page}",
            f"dfs.namenode.name.dir.pair.{name}": str(folder / name),
        }
    return settings


def _node(folder: Path, host: str, files: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    address, localizer, page = free_ports(3, host)
    own = {
        "yarn.nodemanager.hostname": host,
        "yarn.nodemanager.address": f"{host}:{address}",
        "yarn.nodemanager.localizer.address": f"{host}:{localizer}",
        "yarn.nodemanager.webapp.address": f"{host}:{page}",
        "yarn.nodemanager.local-dirs": str(folder / host / "local"),
        "yarn.nodemanager.log-dirs": str(folder / host / "logs"),
    }
    return {"yarn-site.xml": dict(files["yarn-site.xml"]) | own}
