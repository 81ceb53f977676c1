"""Hosts of its own for a benchmark: network namespaces, joined by a bridge and links of a given bandwidth.

No namespace has a name. Each lives as long as a process or an open file holds it, so that nothing is left behind,
however the benchmark ends. Cores and memory are those of this machine, whatever the number of hosts.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import click

from sparkdl.cluster import LaunchBackend, OnMessage, Rank, Timeouts
from sparkdl.cluster.launch import Launch
from sparkdl.cluster.local import Processes, main
from sparkdl.cluster.pickling import pickle_function

__all__ = ["ADDRESS", "DRIVER", "INTERFACE", "Network", "bytes_sent", "inside", "network"]

T = TypeVar("T")
CLONE_NEWNET = 0x40000000  # sched.h
OWN_NETWORK = "/proc/thread-self/ns/net"
ADDRESS = "198.18.0.{}"
"""Of the block that RFC 2544 reserves for benchmarks: hosts are counted from 1."""
DRIVER = ADDRESS.format(254)
"""Where hosts find the driver."""
INTERFACE = "eth0"
"""What each host calls its end of its link."""
BURST, LATENCY = "128kb", "20ms"  # what a link lets through at once, and how long it queues before it drops


@dataclass(frozen=True)
class Network:
    """Hosts, each a network namespace, that one bridge joins to each other and to the driver."""

    bridge: str
    """The file of the bridge's namespace, in which the driver listens."""
    hosts: dict[str, str]
    """The file of each host's namespace, by its name."""

    def limit(self, megabits: float | None) -> None:
        """Let each link carry so many megabits a second in each direction; None: as much as it can."""
        for number, namespace in enumerate(self.hosts.values()):
            with inside(self.bridge):
                _shape(f"port{number}", megabits)
            with inside(namespace):
                _shape(INTERFACE, megabits)

    def separate(self) -> None:
        """From now on, hosts reach the driver and not each other."""
        with inside(self.bridge):
            _do(*(f"ip link set port{number} type bridge_slave isolated on" for number in range(len(self.hosts))))

    def run(
        self,
        function: Callable[[Rank], T],
        *,
        ranks_per_host: int = 1,
        backend: LaunchBackend,
        on_message: OnMessage | None = None,
    ) -> list[T]:
        """Call ``function(rank)`` on each host in so many new processes; the results by rank. Runs on the driver.

        The ranks of a host follow each other. Otherwise this is :func:`sparkdl.cluster.run_local`.
        """
        hosts = [host for host in self.hosts for _ in range(ranks_per_host)]
        mains = {host: partial(enter_and_be_rank, namespace) for host, namespace in self.hosts.items()}
        with inside(self.bridge):  # where its sockets are made, they stay
            launch = Launch(len(hosts), bind_address=DRIVER, host=DRIVER, timeouts=Timeouts())
        with launch:
            assignment = launch.assignment(pickle_function(function), backend, "all")
            return launch.follow(Processes(hosts, mains, assignment, launch), on_message)


@contextmanager
def network(hosts: int) -> Iterator[Network]:
    """So many hosts, without a limit to their links. Runs on the driver, as root.

    Raises click.ClickException that says what is missing.
    """
    _check_tools()
    with ExitStack() as files:
        bridge = _new_namespace(files)
        with inside(bridge):
            _do("ip link set lo up", "ip link add bridge type bridge", "ip link set bridge up")
            _do(f"ip address add {DRIVER}/24 dev bridge")
        namespaces = [_new_namespace(files) for _ in range(hosts)]
        for number, namespace in enumerate(namespaces):
            with inside(bridge):
                _do(f"ip link add port{number} type veth peer name {INTERFACE} netns {namespace}")
                _do(f"ip link set port{number} master bridge up")
            with inside(namespace):
                _do("ip link set lo up", f"ip address add {ADDRESS.format(1 + number)}/24 dev {INTERFACE}")
                _do(f"ip link set {INTERFACE} up")
        yield Network(bridge, {f"host{number}": namespace for number, namespace in enumerate(namespaces)})


def enter_and_be_rank(namespace: str, result_fd: int) -> None:
    """Be one rank in the network of a host. Runs on a rank."""
    _enter(namespace)
    main(result_fd)


def bytes_sent() -> int:
    """Bytes that this host has sent over its link so far, headers included. Runs on a rank."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    (counts,) = [line.partition(":")[2].split() for line in lines if line.strip().startswith(f"{INTERFACE}:")]
    return int(counts[8])


def _check_tools() -> None:
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        raise click.ClickException(f"there is no {' and no '.join(missing)} here, which makes links; install iproute2")


def _shape(interface: str, megabits: float | None) -> None:
    """What an interface sends goes through a bucket of tokens that fills at this speed."""
    discipline = f"tbf rate {megabits}mbit burst {BURST} latency {LATENCY}" if megabits else "noqueue"
    _do(f"tc qdisc replace dev {interface} root {discipline}")


def _do(*commands: str) -> None:
    """Run commands in the network of the calling thread."""
    for command in commands:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(f"`{command}` says: {(done.stderr or done.stdout).strip()}")


def _new_namespace(files: ExitStack) -> str:
    """A network of its own, as a file that is kept open until ``files`` are closed; nobody is in it yet."""
    before = os.open(OWN_NETWORK, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
            raise click.ClickException(
                f"the kernel makes no network namespace here ({os.strerror(ctypes.get_errno())}): run the benchmark as"
                " root, in a container with the capabilities SYS_ADMIN and NET_ADMIN"
            )
        made = os.open(OWN_NETWORK, os.O_RDONLY)
        files.callback(os.close, made)
        _enter(_path(before))
    finally:
        os.close(before)
    return _path(made)


@contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Have the calling thread in another network for as long as the block lasts."""
    before = os.open(OWN_NETWORK, os.O_RDONLY)
    try:
        _enter(namespace)
        yield
    finally:
        _enter(_path(before))
        os.close(before)


def _enter(namespace: str) -> None:
    """Move the calling thread to a network; threads, processes and sockets that it makes from now on are there, too."""
    with Path(namespace).open() as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"{os.strerror(ctypes.get_errno())}: {namespace}")


def _path(file: int) -> str:
    """Where every process of this machine finds an open file of this one."""
    return f"/proc/{os.getpid()}/fd/{file}"
