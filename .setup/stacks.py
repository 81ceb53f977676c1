"""The environments that set-up makes: the classic stack in ``.venv`` and the current one in ``.venv-current``."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from steps import CACHE

__all__ = ["CLASSIC", "CURRENT", "SETUP", "STACKS", "Stack"]

SETUP = Path(__file__).resolve().parent
ROOT = SETUP.parent


@dataclass(frozen=True)
class Stack:
    """An environment: where it is, which versions are in it, and what shows that it works."""

    name: str
    venv: Path
    lock: Path
    with_horovod: bool
    proof: str
    """A program that imports what was installed."""

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.venv / "bin" / "python"

    @property
    def pip(self) -> list[str | Path]:
        """The beginning of a command that installs something in it."""
        return [self.python, "-m", "pip"]

    @property
    def stamp(self) -> Path:
        """What the last set-up left: how far it got, from what, and what Horovod was built for."""
        return self.venv / "set-up"

    @property
    def logs(self) -> Path:
        """Each checkout's and each stack's own: any of them may be set up at once."""
        return CACHE / "logs" / hashlib.sha256(str(self.venv).encode()).hexdigest()[:8]


CLASSIC = Stack(
    name="classic",
    venv=ROOT / ".venv",
    lock=SETUP / "requirements.txt",
    with_horovod=True,
    proof="import horovod.torch, mlflow, petastorm.unischema, pyspark.sql, sparkdl; assert horovod.torch.gloo_built()",
)
CURRENT = Stack(
    name="current",
    venv=ROOT / ".venv-current",
    lock=SETUP / "requirements-current.txt",
    with_horovod=False,
    proof="import mlflow, pyspark.sql, sparkdl, torch.distributed; assert torch.distributed.is_gloo_available()",
)
STACKS = {stack.name: stack for stack in (CLASSIC, CURRENT)}
