"""An environment with what a model's ``requirements.txt`` asks for and nothing else, without an index.

The packages are those of the environment that the tests run in, linked one by one; the versions are compared.
"""

import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["make_environment"]

PROGRAM = "#!{python}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n"


def make_environment(folder: Path, requirements: Path) -> Path:
    """Make it; returns its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    waiting = [Requirement(line) for line in requirements.read_text().splitlines() if line]
    found: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        package = distribution(name)
        assert requirement.specifier.contains(package.version, prereleases=True), requirement
        waiting += map(Requirement, package.requires or [])
        for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(package.locate_file(top))))
        for entry in package.entry_points.select(group="console_scripts"):
            script = folder / "bin" / entry.name
            script.write_text(PROGRAM.format(python=python, module=entry.module, function=entry.attr.partition(".")[0]))
            script.chmod(0o755)
    return python
