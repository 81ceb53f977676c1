"""A stand-in for Kubernetes' scheduler and kubelet: the container of each pod is a process of this machine.

It has a host name, numbers of processes (PID 1 is its command) and mounts of its own, but instead of an image this
machine's files but for ``/opt``; its address is one of its own on loopback. Nothing else is isolated or limited.
"""

import itertools
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import requests

from .control_plane import MANIFESTS, ControlPlane

LOOK_SECONDS = 0.3
NODE = "this-machine"


@dataclass
class Container:
    """The process of a pod."""

    process: subprocess.Popen[bytes]
    address: str
    specification: Mapping[str, Any]
    mounts: Path
    ending: bool = field(default=False)

    def first(self) -> psutil.Process | None:
        """That which the container sees as PID 1."""
        with suppress(psutil.Error, IndexError):
            return psutil.Process(self.process.pid).children()[0]
        return None

    def signal(self, number: signal.Signals) -> None:
        """Send the first process a signal."""
        with suppress(psutil.Error):
            if first := self.first():
                first.send_signal(number)


class Kubelet(threading.Thread):
    """Looks at the pods three times a second. ``image`` are the variables of what stands for the image."""

    def __init__(self, plane: ControlPlane, folder: Path, image: Mapping[str, str]) -> None:
        super().__init__(name="kubelet", daemon=True)
        self.plane, self.folder, self.image = plane, folder, image
        self.containers: dict[str, Container] = {}
        self._addresses = itertools.count(1)
        self._ended = threading.Event()
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")

    def __enter__(self) -> "Kubelet":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join(60)
        for container in self.containers.values():
            container.process.kill()  # and its first process with it, and all others with that
            container.process.wait()

    def run(self) -> None:
        """Do what the pods ask for until the block ends."""
        while not self._ended.wait(LOOK_SECONDS):
            with suppress(requests.RequestException):
                pods = self.plane.pods()
                self._name_pods(pods)
                for pod in pods:
                    self._look(pod, pod["metadata"]["name"])

    def log(self, name: str) -> str:
        """What a pod's container has printed."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _look(self, pod: dict[str, Any], name: str) -> None:
        container, ending = self.containers.get(name), "deletionTimestamp" in pod["metadata"]
        if container is None:
            if ending:
                self._remove(name)
            elif pod["status"]["phase"] == "Pending":
                self._begin(pod, name)
        elif container.process.poll() is not None:
            if pod["status"]["phase"] == "Running":
                self._report(name, container, code=container.process.returncode)
            if ending:
                self._remove(name)
        elif ending and not container.ending:
            container.ending = True
            grace = pod["metadata"]["deletionGracePeriodSeconds"]
            threading.Thread(target=self._end, args=(container, grace), daemon=True).start()

    def _begin(self, pod: dict[str, Any], name: str) -> None:
        specification = pod["spec"]["containers"][0]
        volumes = pod["spec"].get("volumes", [])
        maps = {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}
        found_maps = {each: self.plane.ask("GET", self.plane.of_namespace(f"configmaps/{each}")) for each in maps}
        if None in found_maps.values():
            return  # Spark makes a driver's when there is the driver: it waits for it
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        if "nodeName" not in pod["spec"]:
            self.plane.ask("POST", self.plane.of_namespace(f"pods/{name}/binding"), binding)
        address = f"127.0.1.{next(self._addresses)}"
        mounts = self.folder / name
        for volume in volumes:
            self._fill(volume, mounts / volume["name"], pod)
            if source := volume.get("configMap"):
                paths = {item["key"]: item["path"] for item in source.get("items", [])}
                for key, text in found_maps[source["name"]].get("data", {}).items():
                    (mounts / volume["name"] / paths.get(key, key)).write_text(text)
        found = self.image | {each["name"]: _value(each, name, address) for each in specification.get("env", [])}
        # Of an image there is what the manifests put into /opt; each volume is where the pod wants it.
        steps = [f"hostname {name}", "mount -t tmpfs none /opt", "mount -t tmpfs none /run"]
        steps += [f"cp {MANIFESTS}/*.sh /opt/", f"mount --bind {shlex.quote(str(self._hosts))} /etc/hosts"]
        for each in specification.get("volumeMounts", []):
            source, place = shlex.quote(str(mounts / each["name"])), shlex.quote(each["mountPath"])
            steps.append(f"mkdir -p {place} && mount --bind {source} {place}")
        command = [*specification.get("command", ["/opt/entrypoint.sh"]), *specification.get("args", [])]
        script = " && ".join([*steps, 'exec "$@"'])
        apart = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        apart += ["bash", "-c", script, "pod"]
        with self._hosts.open("a") as hosts:
            hosts.write(f"{address} {name}\n")
        work = mounts / "work"
        work.mkdir(parents=True, exist_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen([*apart, *command], env=found, stdout=log, stderr=log, cwd=work)
        self.containers[name] = Container(process, address, specification, mounts)
        self._report(name, self.containers[name])

    def _fill(self, volume: dict[str, Any], place: Path, pod: dict[str, Any]) -> None:
        """A volume as a folder: an empty one, or what the API server adds for a service account."""
        place.mkdir(parents=True, exist_ok=True)
        for source in volume.get("projected", {}).get("sources", []):
            if token := source.get("serviceAccountToken"):
                (place / token["path"]).write_text(self.plane.token(pod["spec"]["serviceAccountName"]))
            elif "configMap" in source:  # the controller manager would make it of the certificate
                shutil.copy(self.plane.certificate, place / "ca.crt")
            else:
                (place / "namespace").write_text(pod["metadata"]["namespace"])

    def _name_pods(self, pods: list[dict[str, Any]]) -> None:
        """What a cluster's DNS does for headless services; and each pod knows its own name."""
        lines = ["127.0.0.1 localhost", *(f"{each.address} {name}" for name, each in self.containers.items())]
        for service in self.plane.ask("GET", self.plane.of_namespace("services"))["items"]:
            selector, names = service["spec"].get("selector", {}), service["metadata"]
            for pod in pods:
                container = self.containers.get(pod["metadata"]["name"])
                if container and selector.items() <= pod["metadata"].get("labels", {}).items():
                    lines.append(f"{container.address} {names['name']}.{names['namespace']}.svc")
        self._hosts.write_text("\n".join(lines) + "\n")

    def _end(self, container: Container, grace: float) -> None:
        """What Kubernetes does: the hook, then SIGTERM, then SIGKILL, all within the grace period."""
        deadline = time.monotonic() + grace
        hook, first = container.specification.get("lifecycle", {}).get("preStop", {}).get("exec"), container.first()
        if hook and first:
            enter = ["nsenter", "--target", str(first.pid), "--mount", "--pid", *hook["command"]]
            with suppress(subprocess.TimeoutExpired):
                subprocess.run(enter, timeout=grace, check=False, capture_output=True)
        container.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            container.process.wait(max(0.0, deadline - time.monotonic()))
        container.process.kill()

    def _report(self, name: str, container: Container, code: int | None = None) -> None:
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        code = code if code is None or code >= 0 else 128 - code
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        ended = {"exitCode": code, "reason": "Error" if code else "Completed", "finishedAt": now}
        state = {"running": {"startedAt": now}} if code is None else {"terminated": ended}
        self._patch(name, phase, container.address, state, container.specification)

    def _patch(self, name: str, phase: str, address: str, state: Any, specification: Mapping[str, Any]) -> None:
        ready = "running" in state
        status = {"name": specification["name"], "image": specification["image"], "imageID": "", "restartCount": 0}
        found = {"phase": phase, "containerStatuses": [status | {"state": state, "ready": ready}]}
        found["conditions"] = [{"type": "Ready", "status": str(ready)}]
        if address:
            found |= {"podIP": address, "podIPs": [{"ip": address}]}
        path = self.plane.of_namespace(f"pods/{name}/status")
        self.plane.ask("PATCH", path, {"status": found}, "application/merge-patch+json")

    def _remove(self, name: str) -> None:
        self.plane.ask("DELETE", self.plane.of_namespace(f"pods/{name}"), {"gracePeriodSeconds": 0})


def _value(variable: Mapping[str, Any], name: str, address: str) -> str:
    """That of a variable of a pod, which may be something that its status has."""
    if "valueFrom" not in variable:
        return str(variable.get("value", ""))
    known = {"status.podIP": address, "metadata.name": name}
    return known[variable["valueFrom"]["fieldRef"]["fieldPath"]]
