"""etcd and Kubernetes' API server, which Go builds from the sources of their modules, once, into the user's cache."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sparkdl.storage import cache_folder

GO = shutil.which("go") or "/usr/local/go/bin/go"  # where Go's own archive is unpacked
BUILD_SECONDS = 3600
_STAGED = re.compile(r"^\s*(k8s\.io/\S+) v0\.0\.0$", re.MULTILINE)
"""What Kubernetes requires of its own repository, which is published as modules with versions of their own."""


@dataclass(frozen=True)
class Build:
    """A program, and the version of the module that it is built from."""

    module: str
    version: str
    package: str
    name: str

    @property
    def path(self) -> Path:
        """Of the program."""
        return cache_folder() / "kubernetes" / f"{self.name}-{self.version}"


ETCD = Build("go.etcd.io/etcd/server/v3", "v3.6.16", "go.etcd.io/etcd/server/v3", "etcd")
API_SERVER = Build("k8s.io/kubernetes", "v1.34.3", "k8s.io/kubernetes/cmd/kube-apiserver", "kube-apiserver")
"""Debian's etcd is too old for this one."""


def program(build: Build) -> Path:
    """The program, which is built if it is not there: a quarter of an hour for the API server on two cores."""
    if not build.path.exists():
        build.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=build.path.parent) as folder:
            _build(build, Path(folder))
            (Path(folder) / build.name).rename(build.path)
    return build.path


def _build(build: Build, folder: Path) -> None:
    """A module that requires the other one and has no code of its own; Go takes modules from where it always does."""
    (folder / "go.mod").write_text(f"module built\n\ngo 1.24\n\nrequire {build.module} {build.version}\n")
    (folder / "tools.go").write_text(f'//go:build tools\n\npackage built\n\nimport _ "{build.package}"\n')
    required = Path(json.loads(_go(folder, "mod", "download", "-json", f"{build.module}@{build.version}"))["GoMod"])
    published = build.version.replace("v1.", "v0.", 1)
    for module in _STAGED.findall(required.read_text()):
        _go(folder, "mod", "edit", f"-replace={module}={module}@{published}")
    _go(folder, "build", "-p", "2", "-ldflags=-s -w", "-o", build.name, build.package)


def _go(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["nice", "-n", "19", GO, *arguments],
        cwd=folder,
        env=os.environ | {"GOFLAGS": "-mod=mod -buildvcs=false", "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"go {' '.join(arguments)}\n{done.stderr[-4000:]}"
    return done.stdout


if __name__ == "__main__":
    for each in (ETCD, API_SERVER):
        print(program(each), flush=True)
