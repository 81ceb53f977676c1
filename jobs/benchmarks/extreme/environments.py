"""Environments of their own for libraries whose pins are not ours: made once, and kept in the user's cache folder."""

import hashlib
import os
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

__all__ = ["ENVIRONMENTS", "python_of"]

TREES = (("omikuji==0.5.2", "napkinxc==0.7.2", "libmultilabel==0.10.0"),)
# The rest of what libpecos asks for is for its transformers.
PECOS = (("numpy<2", "scipy<1.14", "scikit-learn"), ("--no-deps", "libpecos==1.2.8"))
ENVIRONMENTS = {
    "omikuji": TREES,
    "omikuji, cluster_k = 100": TREES,
    "napkinXC, PLT": TREES,
    "napkinXC, one-vs-rest": TREES,
    "LibMultiLabel, tree": TREES,
    "PECOS, XR-Linear": PECOS,
}
"""What pip is told to install, one call after another, by the name of the peer that needs it."""
DONE = "complete"


def python_of(requirements: Sequence[Sequence[str]]) -> Path:
    """The interpreter of an environment with these packages, which is made where it is missing.

    Raises CalledProcessError if pip fails.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(repr((sys.version_info[:2], requirements)).encode()).hexdigest()
    folder = cache / "sparkdl" / "rivals" / digest[:16]
    python = folder / "bin" / "python"
    if not (folder / DONE).exists():
        venv.create(folder, clear=True, with_pip=True)
        for each in requirements:
            subprocess.run([python, "-m", "pip", "install", "--quiet", *each], check=True)
        (folder / DONE).touch()
    return python
