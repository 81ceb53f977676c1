"""Hadoop's files of settings for one machine: a name node, a data node, a resource manager and node managers."""

from collections.abc import Mapping
from pathlib import Path

from benchmarks.ports import free_ports

MASTER = "127.0.0.1"
NODES = ("127.0.0.2", "127.0.0.3")
"""Each node manager has an address of its own, the host of its containers, by which a node is excluded."""
NODE_MEMORY = 8192  # MiB, with room for both executors and the application's master: so that one may take all over
EXPIRY_SECONDS = 20
"""After which the resource manager gives up a node that it does not hear of; Hadoop's default is ten minutes."""
QUEUES = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
}


class Configuration:
    """The files, in a folder for each daemon; those in ``folder / "client"`` are the clients' and the masters'."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        name_node, resource_manager, self.page, self.name_page, *ports = free_ports(10)
        self.hdfs = f"hdfs://{MASTER}:{name_node}"
        self.exclude = folder / "excluded"
        self.exclude.write_text("")
        data, data_http, data_ipc, scheduler, tracker, admin = ports
        files = {
            "core-site.xml": {"fs.defaultFS": self.hdfs, "hadoop.tmp.dir": str(folder / "tmp")},
            "hdfs-site.xml": {
                "dfs.replication": "1",
                "dfs.namenode.name.dir": str(folder / "names"),
                "dfs.namenode.http-address": f"{MASTER}:{self.name_page}",
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
