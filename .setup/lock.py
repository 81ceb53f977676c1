"""Print the lock: what ``pyproject.toml`` needs, development included, at the versions installed in this environment.

.venv/bin/python .setup/lock.py > lock.txt && mv lock.txt .setup/requirements.txt
.venv-current/bin/python .setup/lock.py > lock.txt && mv lock.txt .setup/requirements-current.txt
"""

from __future__ import annotations

import tomllib
from importlib.metadata import distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

OF_TORCH = "cuda-", "nvidia-", "triton"
"""What only a build of PyTorch with CUDA asks for, and pip installs with it: which build it is depends on the index."""


def closure(requirements: list[str]) -> dict[str, str]:
    """The version of every package that these requirements lead to."""
    found: dict[str, str] = {}
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        if name.startswith(OF_TORCH):
            continue
        installed = distribution(name)
        found[name] = Version(installed.version).public  # torch's build (+cpu, +cu130) is the index's choice
        waiting += map(Requirement, installed.requires or [])
    return found


if __name__ == "__main__":
    pyproject = Path(__file__).resolve().parent.parent / "pyproject.toml"
    project = tomllib.loads(pyproject.read_text())["project"]
    extras = project["optional-dependencies"]
    on_both = ("optimizers", "text", "finetuning", "forms", "tune", "hdfs", "docs", "dev")
    needed = [*project["dependencies"], *(text for extra in on_both for text in extras[extra])]
    needed += ["pip", "setuptools"]  # set-up's
    if find_spec("petastorm"):  # the classic stack; Horovod, which needs cffi, is built by set-up
        needed += ["cffi", *(text for text in extras["classic"] if Requirement(text).name != "horovod")]
    else:
        needed += extras["connect"]
    print("# Written by lock.py.")
    for package, version in sorted(closure(needed).items()):
        print(f"{package}=={version}")
